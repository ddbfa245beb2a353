"""A stand-in for apex.parallel."""

DistributedDataParallel = None
