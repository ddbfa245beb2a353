"""SageMaker Profiler (docs/profiler.md)."""

from toolkit.rank.profiler.smppy import Config, SMProfiler, annotate, annotation_begin, annotation_end

__all__ = ["Config", "SMProfiler", "annotate", "annotation_begin", "annotation_end"]
