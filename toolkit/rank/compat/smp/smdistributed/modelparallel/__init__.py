"""smdistributed.modelparallel over the toolkit's open library (toolkit/rank/modelparallel, docs/modelparallel.md)."""

# The release whose interface this is: transformers asks for 1.10 or later.
__version__ = "1.15.0"
