"""A rank that queues each kind of collective while gloo's thread still releases the one before it; prints JSON.

Gloo's thread then holds its queue's mutex and waits for the GIL. A collective that waits for the mutex while it holds
the GIL never returns. Each kind is tried until gloo's thread was met in that state many times.
"""

import faulthandler
import json
import os
import re
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from toolkit.rank.dataparallel import backend

ROUNDS = 60
RELEASING_S = 0.001  # How long gloo's thread takes, at most, from a collective's end to its wait for the GIL.
torch.set_num_threads(1)
faulthandler.dump_traceback_later(120, exit=True)
backend.register()
dist.init_process_group("smddp", rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
world, rank, size = dist.group.WORLD, dist.get_rank(), dist.get_world_size()
sys.setswitchinterval(100)  # No other thread can take the GIL from this one: it releases it itself.


def of(count):
    return torch.ones(count)


def passed():
    return world.send([of(1)], 1, 0) if rank == 0 else world.recv([of(1)], 0, 0)


KINDS = {
    "allgather": lambda: world.allgather([[of(1), of(1)]], [of(1)]),
    "allreduce": lambda: world.allreduce([of(1)]),
    "allreduce_coalesced": lambda: world.allreduce_coalesced([of(1)]),
    "alltoall_base": lambda: world.alltoall_base(of(2), of(2), [], []),
    "barrier": world.barrier,
    "broadcast": lambda: world.broadcast([of(1)]),
    "gather coalesced": lambda: world.allgather_into_tensor_coalesced([of(2)], [of(1)]),
    "reduce_scatter": lambda: world.reduce_scatter([of(1)], [[of(1), of(1)]]),
    "scatter coalesced": lambda: world.reduce_scatter_tensor_coalesced([of(1)], [of(2)]),
    "send and recv": passed,
}
for call in KINDS.values():
    for _ in range(ROUNDS):
        dist.all_reduce(of(1))
        until_s = time.perf_counter() + RELEASING_S
        while time.perf_counter() < until_s:
            pass
        call().wait()

headers = Path(torch.__file__).parent / "include/torch/csrc/distributed/c10d"
(header,) = headers.rglob("PyProcessGroup.hpp")  # In py/ from torch 2.14 on.
methods = re.split(r"c10::intrusive_ptr<Work> (?=\w+\()", header.read_text())[1:]
names = [[re.match(r"\w+", first)[0], *re.findall(r'"(\w+)"\)', first)] for first in methods]
bare = [either for either in names if not any(name in vars(type(world)) for name in either)]
print(json.dumps({"returned": sorted(KINDS), "overrides of torch": len(names), "without ours": bare}), flush=True)
dist.destroy_process_group()
