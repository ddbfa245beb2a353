"""A rank of the shared-memory group's tests: `python shared_memory_rank.py FOLDER RANK SIZE SCENE`.

Prints what it saw, a line each.
"""

import os
import signal
import sys
import threading
from pathlib import Path

from tests.rank.dataparallel.reduce.ranks import FolderStore
from toolkit.rank.dataparallel.reduce.shared_memory import HEAD_BYTES, PeerLost, SharedMemoryGroup

BYTES = 1 << 16
folder, me, size, scene = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
timeout_s = 0.3 if scene == "one is late" and me == 0 else 60.0
store = FolderStore(folder)
put, get = store.put, store.get


def find_offset(place: int, rank: int) -> int:
    return HEAD_BYTES + place * 1024 + rank * 64


shared_memory = SharedMemoryGroup(me, tuple(f"rank {rank}" for rank in range(size)), timeout_s)
if scene == "one has no socket" and me == 1:
    put("listener/1", "")
    sys.exit()
try:
    shared_memory.connect(put, get, BYTES, 60.0)
except OSError as error:
    print(f"not connected: {error}", flush=True)
    sys.exit()
memory = shared_memory.memory
if scene == "they meet":
    # In turn two places a rank: what one writes before a barrier all have to see after it.
    for number in range(500):
        memory[find_offset(number & 1, me)] = number % 251
        shared_memory.barrier("a test")
        values_seen = [memory[find_offset(number & 1, rank)] for rank in range(size)]
        if values_seen != [number % 251] * size:
            print(f"barrier {number}: {values_seen}", flush=True)
            break
    print("met", flush=True)
elif scene == "one is killed":
    shared_memory.barrier("a test")
    if me == 1:
        if os.fork() == 0:  # As a DataLoader's worker: it outlives its parent, and must not stand for it.
            shared_memory.release()
            signal.pause()
        put("child", "forked")
        os.kill(os.getpid(), signal.SIGKILL)
    get("child")
    try:
        shared_memory.barrier("a test")
    except PeerLost as error:
        print(error, flush=True)
        shared_memory.close()
elif scene == "one leaves early":
    # All come to the last barrier; who goes on at once must not break the others' way through it.
    for _ in range(50):
        shared_memory.barrier("a test")
    print("met", flush=True)
    shared_memory.close()
    shared_memory.release()
    del memory
    print(f"descriptors {len(list(Path('/proc/self/fd').iterdir()))}", flush=True)
elif scene == "one is late":
    shared_memory.barrier("a test")
    if me == 0:
        try:
            shared_memory.barrier("a test")
        except RuntimeError as error:
            print(f"{type(error).__name__}: {error}", flush=True)
        put("over", "over")
    else:
        get("over")
elif scene == "one closes":
    shared_memory.barrier("a test")
    if me == 0:
        threading.Timer(0.05, shared_memory.close).start()
        try:
            shared_memory.barrier("a test")
        except RuntimeError as error:
            print(f"{type(error).__name__}: {error}", flush=True)
        put("over", "over")
    else:
        get("over")
        shared_memory.barrier("a test")  # To which rank 0 had come before it closed.
        try:
            shared_memory.barrier("a test")
        except RuntimeError as error:
            print(f"{type(error).__name__}: {error}", flush=True)
            shared_memory.close()
