"""Importing this module registers the backend "smddp" with torch.distributed; it defines nothing."""

from toolkit.rank.dataparallel.backend import register

register()
