"""A stand-in for apex.parallel.distributed."""

flat_dist_call = None
