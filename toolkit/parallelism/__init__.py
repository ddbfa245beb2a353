"""Model parallelism, for `train` and for the ranks: parameters, placement, the partition decision, the step timeline.

Pure. `train` and `toolkit` check a job with it before the start and show decisions; the ranks
(toolkit/rank/modelparallel) run by it.
"""
