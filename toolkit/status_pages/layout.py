"""The layout of the files that `train` and a script share, in the private folder TOOLKIT_STATUS_FOLDER.

`train` makes the folder, and `stop` in it, before it starts ranks. A process that uses `toolkit.status` writes
`rank-<pid>`; one that ends by an exception leaves `raised-<pid>.json` (the start-up hook's work). Both sides use
this file, so its imports must be cheap for a script: no msgspec, no typing (45 ms and 10 ms, measured).

`rank-<pid>` and `stop` are a page each: a head, written once, and a body that changes in place. All fields are eight
bytes, little-endian, aligned, so a field is always whole. A body begins and ends with a counter that every write
increases: if the two differ, a write is under way, or its writer was killed during it. `rank-<pid>` has two bodies,
which are written in turns: a rank that loses its core in a write, or is killed there, leaves the other one whole.
"""

import struct

TYPE_CHECKING = False  # As typing's, without importing it.
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

VARIABLE = "TOOLKIT_STATUS_FOLDER"
VERSION = 1
PAGE_BYTES = 4096
NONE = -1  # No step. No progress is NaN.

STOP_NAME = "stop"
STOP_HEAD = struct.Struct("<q")  # version
# counter, requested_at_ns, deadline_ns, signal, stop_step, counter. All zero: no stop was requested.
STOP_BODY = struct.Struct("<6q")

RANK_NAME = "rank-%d"
RANK_HEAD = struct.Struct("<2q")  # version, pid
# Twice: counter, step, step_time_ns, step_ns, heartbeats, progress, holding, holding_since_ns, counter
RANK_BODY = struct.Struct("<5qd3q")

# The first rank of the job that ended with 0, as "rank 1 of host algo-1", where others may wait for all ranks.
DONE_NAME = "rank-done"

RAISED_NAME = "raised-%d.json"

# The facts about compiling in a process (toolkit/rank/compiler/facts_file.py; job/compilation.py has the fields).
COMPILER_NAME = "compiler-%d.json"

# The ring of step times of a process whose steps the start-up hook measures. A record is written, then counted.
STEPS_NAME = "steps-%d"
STEPS_HEAD = struct.Struct("<4q")  # version, pid, records that fit, records written so far
# number (counts from 1; tells an overwritten record), step, end_ns (monotonic), then durations in ns, NONE where not
# measured: the whole step, waiting for the data loader, forward, backward, optimizer, saving checkpoints within it, of
# backward what this rank computed before it waited for others, evaluation, garbage collection, the pause before the
# forward pass that is none of these, and torch.compile within the step; then CPU times of the thread that steps: in the
# whole step, in waiting for data, evaluation, saving, and the pause.
STEPS_RECORD = struct.Struct("<19q")
STEPS_KEPT = 4096

# Where a process was in the pauses of its steps: JSON (rank/profiler/pauses.py).
PAUSES_NAME = "pauses-%d.json"

# What a process that trains did before its first step: JSON (rank/profiler/import_clock.py).
START_NAME = "start-%d.json"

# Requests to trace while the process runs, numbered from 1. The ranks -1, -1 mean all.
PROFILE_NAME = "profile"
PROFILE_BODY = struct.Struct("<6q")  # counter, request, steps, rank, other rank, counter

TRIES = 8


def read_consistent(read: "Callable[[], bytes]", body: struct.Struct) -> "tuple[Any, ...] | None":
    """Return the fields of *body* between its counters, None if no try was consistent or *read* fell short.

    Two reads in a row must agree: a single one may have begun before a write and ended after it.
    """
    previous = read()
    for _ in range(TRIES):
        now = read()
        if len(now) != body.size:
            return None
        fields = body.unpack(now)
        if now == previous and fields[0] == fields[-1]:
            return fields[1:-1]
        previous = now
    return None


def read_newer(read: "Callable[[], bytes]", body: struct.Struct) -> "tuple[Any, ...] | None":
    """Return the fields of the newer of two bodies that are written in turns, less the counters.

    None if no try found a whole one, or *read* fell short. As in `read_consistent`, two reads in a row must agree.
    """
    previous = b"", b""
    for _ in range(TRIES + 1):
        now = read()
        if len(now) != 2 * body.size:
            return None
        bodies = now[: body.size], now[body.size :]
        unchanged = [body.unpack(new) for old, new in zip(previous, bodies, strict=True) if old == new]
        whole = [fields for fields in unchanged if fields[0] == fields[-1]]
        if whole:
            return max(whole, key=lambda fields: fields[0])[1:-1]
        previous = bodies
    return None
