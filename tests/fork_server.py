"""The server of tests/forking.py: `python fork_server.py FD MODULE...` imports the modules, and forks as FD asks.

A request is JSON with the fork's argv, environ, folder and whether it ignores warnings, and three descriptors: its
stdout, its stderr and a socket, which gets the fork's pid and then its exit status. The server ends when FD is closed.
"""

import gc
import importlib
import importlib.machinery
import json
import os
import select
import signal
import site
import socket
import sys
import types
import warnings
from pathlib import Path
from typing import Any


class Imported:
    """Finds the modules *names*, which are imported already: a program's import of one is seen by who waits for it."""

    def __init__(self, names: "set[str]") -> None:
        self._modules = {name: sys.modules.pop(name) for name in names}
        self._specs = {name: module.__spec__ for name, module in self._modules.items()}

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> "importlib.machinery.ModuleSpec | None":
        if name not in self._modules:
            return None
        return importlib.machinery.ModuleSpec(name, self)  # type: ignore[arg-type]

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return self._modules[spec.name]

    def exec_module(self, module: types.ModuleType) -> None:
        module.__spec__ = spec = self._specs[module.__name__]
        module.__loader__ = None if spec is None else spec.loader
        del self._modules[module.__name__]


def serve(control: socket.socket) -> "dict[str, Any]":
    """Fork for each request. Returns in the forks, with the request."""
    wakes, woken = socket.socketpair()
    for end in (wakes, woken):
        end.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(woken.fileno(), warn_on_full_buffer=False)
    forks: dict[int, socket.socket] = {}
    control.send(b"ready")
    while True:
        readable, _, _ = select.select([control, wakes], [], [])
        if wakes in readable:
            wakes.recv(4096)
            _tell_ended(forks)
        if control not in readable:
            continue
        message, descriptors, _, _ = socket.recv_fds(control, 1 << 20, 3)
        if not message:
            for pid in forks:
                os.kill(pid, signal.SIGKILL)
            os._exit(0)
        stdout, stderr, end_fd = descriptors
        pid = os.fork()
        if not pid:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.dup2(stdout, 1)
            os.dup2(stderr, 2)
            for inherited in (control, wakes, woken, *forks.values()):
                inherited.close()
            for fd in descriptors:
                os.close(fd)
            request: dict[str, Any] = json.loads(message)
            return request
        os.close(stdout)
        os.close(stderr)
        forks[pid] = socket.socket(fileno=end_fd)
        _tell(forks[pid], pid)


def _tell_ended(forks: "dict[int, socket.socket]") -> None:
    for pid in list(forks):
        if (status := os.waitpid(pid, os.WNOHANG))[0]:
            with forks.pop(pid) as end:
                _tell(end, os.waitstatus_to_exitcode(status[1]))


def _tell(end: socket.socket, number: int) -> None:
    try:
        end.send(str(number).encode())
    except BrokenPipeError:
        pass  # Nobody waits for it.


def seed_anew() -> None:
    """Seed the generators that libraries seeded when they were imported: no two processes draw the same numbers."""
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.seed()


def begin(request: "dict[str, Any]") -> types.CodeType:
    """Make this process what `python PROGRAM` is before the program's first line; return its code."""
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environ"])
    program = Path(request["argv"][0]).absolute()
    sys.argv = request["argv"]
    sys.orig_argv = [sys.executable, *request["argv"]]
    entries = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = dict.fromkeys([*entries, *sys.path[1:]])
    if request["warnings"] == "ignore":
        warnings.simplefilter("ignore")
    seed_anew()
    sys.modules.pop("sitecustomize", None)  # The interpreter's own, if it has one.
    site.execsitecustomize()
    sys.path.insert(0, str(program.parent))
    awaited = {name for finder in sys.meta_path for name in getattr(finder, "loads", ()) if name in sys.modules}
    sys.meta_path.insert(1, Imported(awaited))  # Behind the hook's finder.
    main = types.ModuleType("__main__")
    main.__file__ = str(program)
    sys.modules["__main__"] = main
    return compile(program.read_bytes(), program, "exec")


control = socket.socket(fileno=int(sys.argv[1]))
for name in sys.argv[2:]:
    importlib.import_module(name)
gc.collect()
gc.freeze()
code = begin(serve(control))
exec(code, sys.modules["__main__"].__dict__)
