"""Model parallel training: what scripts import as smdistributed.modelparallel (docs/modelparallel.md)."""
