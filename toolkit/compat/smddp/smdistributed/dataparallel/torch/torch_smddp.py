"""Importing this registers the backend "smddp" with torch.distributed; it holds nothing else."""

from toolkit.dataparallel.backend import register

register()
