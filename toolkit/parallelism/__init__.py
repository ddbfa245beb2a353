"""Model parallelism, for `train` and for the ranks: parameters, placement, the partition decision, the step timeline.

Pure. The launcher side checks a job with it before the start and shows decisions; the script side
(toolkit/rank/modelparallel) runs by it.
"""
