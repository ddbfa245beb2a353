"""Writes the collectives of this rank to a file whenever `train` asks for them (train/supervise/collective_dumps.py).

A thread answers: the main thread waits in a collective, without the GIL. If it holds the GIL, or the process is
stopped, there is no answer, and that is a fact as well. The thread waits in open(2) of a FIFO, which costs nothing, and
starts with the first process group: gloo and NCCL then have threads of their own.
"""

import _thread
import functools
import json
import os
import sys

from ..frameworks.torch import flight_recorder

TYPE_CHECKING = False  # As typing's, without importing it.
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any


def attach(c10d: "ModuleType", folder: str) -> None:
    """Have the first process group that the script makes start the thread. *c10d*: torch.distributed.distributed_c10d;
    *folder*: for the FIFO and the answers."""
    original = c10d.init_process_group

    @functools.wraps(original)
    def init_process_group(*args: "Any", **options: "Any") -> "Any":
        group = original(*args, **options)
        if flight_recorder.can_dump():
            _start(folder)
        return group

    # torch.distributed takes the name from there, unless it has done so before.
    modules = [c10d, sys.modules.get("torch.distributed")]  # type: list[Any]
    for module in modules:
        if getattr(module, "init_process_group", None) is original:
            module.init_process_group = init_process_group


def _start(folder: str) -> None:
    """Start the thread, once in a process."""
    request = os.path.join(folder, "%d.request" % os.getpid())
    try:
        os.mkfifo(request, 0o600)
    except FileExistsError:
        return  # A second process group.
    except OSError as error:
        sys.stderr.write("[toolkit] collectives are not recorded: %s: %s\n" % (request, error.strerror))
        return
    _thread.start_new_thread(_answer, (request, os.path.join(folder, str(os.getpid()))))


def _answer(request: str, answer: str) -> None:
    while True:
        try:
            fd = os.open(request, os.O_RDONLY)  # Until `train` opens the other end.
            try:
                while os.read(fd, 64):
                    pass
            finally:
                os.close(fd)
        except OSError:
            return  # The folder is gone: the run has ended.
        try:
            # Frames may take seconds to find.
            _write(answer + ".brief.json", flight_recorder.dump_records(has_frames=False))
            _write(answer + ".json", flight_recorder.dump_records(has_frames=True))
        except Exception as error:  # noqa: BLE001 - without an answer the rank's calls are not known
            sys.stderr.write("[toolkit] collectives could not be written: %s: %s\n" % (type(error).__name__, error))


def _write(answer: str, records: "dict[str, Any]") -> None:
    text = json.dumps(records, ensure_ascii=False)
    with open(answer + ".part", "w", encoding="utf-8", errors="replace") as file:  # A file's name may be any bytes.
        file.write(text)
    os.rename(answer + ".part", answer)
