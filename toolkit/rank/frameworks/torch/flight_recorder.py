"""Private names of torch's Flight Recorder, a ring of the newest collectives of a process.

Read in torch 2.9.1 (where TORCH_FR_BUFFER_SIZE turns it on) and 2.13.0 (where it is on, with 2,000 entries). gloo's
calls are in the recorder of all backends, NCCL's in one of their own with the same form. gloo records no transfers
between two ranks.
"""

import os
import pickle

import torch
import torch.distributed as dist

from ..private_names import find_name, find_or_report

TYPE_CHECKING = False  # As typing's, without importing it.
if TYPE_CHECKING:
    from typing import Any

_DUMPS = ("_C._distributed_c10d._dump_fr_trace", "_C._distributed_c10d._dump_nccl_trace")
# Of a call: the innermost frames outside of torch, of which the reader takes one.
MOST_FRAMES = 6


def can_dump() -> bool:
    """Return whether this torch has the recorder; else a line of the log says what is off."""
    return find_or_report(torch, _DUMPS[0], "a hang is explained by stacks alone, without collectives") is not None


def dump_records(has_frames: bool) -> "dict[str, Any]":
    """Return the recorder's content: torch's own form, and `rank`; each group in `pg_config` has its ranks.

    It takes 0.1 s of CPU for 2,000 entries. The first call with frames imports torch._dynamo, as the first optimizer
    does (torch 2.13): 1.4 s of CPU, unless the script has imported it.
    """
    content = {"rank": dist.get_rank(), "version": "", "entries": [], "pg_config": {}, "pg_status": {}}  # type: dict[str, Any]
    for path in _DUMPS:
        dump = find_name(torch, path)
        if dump is None:
            continue
        # Of this process's own memory, in torch's form of pickle.
        part = pickle.loads(dump(True, has_frames, False))  # noqa: S301
        content["version"] = part.get("version", "")
        content["entries"] += [_without_torch(entry) for entry in part.get("entries", ())]
        content["pg_config"].update(part.get("pg_config", {}))
        content["pg_status"].update({str(key): status for key, status in part.get("pg_status", {}).items()})
    for name, ranks in _list_groups().items():
        content["pg_config"][name] = {"name": name, "ranks": str(ranks)}
    return content


def _without_torch(entry: "dict[str, Any]") -> "dict[str, Any]":
    """Return *entry* without torch's own frames."""
    torch_folder = os.path.dirname(torch.__file__) + os.sep
    frames = [frame for frame in entry.get("frames", ()) if not frame["filename"].startswith(torch_folder)]
    return dict(entry, frames=frames[:MOST_FRAMES])


def _list_groups() -> "dict[str, list[int]]":
    """Return the ranks of each process group of this rank by the group's name; {} if torch does not tell."""
    world = find_name(dist, "distributed_c10d._world")
    names = getattr(world, "pg_names", {})
    ranks_by_group = getattr(world, "pg_group_ranks", {})
    return {names[group]: sorted(ranks) for group, ranks in dict(ranks_by_group).items() if group in names}
