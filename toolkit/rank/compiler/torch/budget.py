"""Bounds what compiling may cost, by giving up a compilation that runs inside of the thread that trains.

A compilation alternates between Python (torch's tracing and lowering) and waiting for processes (g++, or torch's
compile workers, which call Triton). A watchdog thread ends both once the time is over: it raises OverBudget in the
thread that compiles, as a signal handler could, and kills the processes that it waits for. torch unwinds as from any
error, and the slot runs the module eagerly. Tried and dropped: torch.compiler.set_stance and backends that look at a
flag act only between two graphs, and one graph of GPT-2 takes minutes.

Not bounded: a single call into C++ that returns late, and the wait for a lock of the cache that another rank holds
(until that rank's own budget is over).
"""

import atexit
import ctypes
import os
import signal
import threading
from _thread import get_ident
from time import monotonic

TYPE_CHECKING = False  # As typing's, without importing it.
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    Processes = Mapping[int, tuple[int, str]]

# Python drops an exception that is raised in __del__ or a weak reference's callback: then it is raised again.
RAISE_AGAIN_S = 0.5
KILL_AGAIN_S = 0.05
# Kernels that still queue start one after the other: the watchdog goes on until no compiler has run for so long.
QUIET_S = 1.0
COMPILERS = ("g++", "c++", "clang", "gcc", "cc", "ccache")
WORKERS = "/compile_worker/"


class OverBudget(BaseException):
    """Compiling has taken as long as it may. No Exception: torch turns some of those into another way to compile."""


class CompileBudget:
    """Compilations of this process may take *limit_s* seconds together, until `close`.

    `is_over`: the limit was reached.
    """

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self.is_over = False
        self._spent_s = 0.0
        self._since_s = 0.0
        self._thread = 0  # The thread that compiles; 0: none does.
        self._is_closed = False
        self._change = threading.Condition()
        self._watchdog: threading.Thread | None = None

    def begin(self) -> None:
        """This thread begins to compile."""
        with self._change:
            if self._is_closed:
                return
            self._since_s, self._thread = monotonic(), get_ident()
            if self._watchdog is None:
                self._watchdog = threading.Thread(target=self._watch, name="toolkit-budget", daemon=True)
                self._watchdog.start()
                atexit.register(self.close)
            self._change.notify()

    def end(self) -> None:
        """This thread has compiled. Afterwards OverBudget is not raised in it."""
        try:
            with self._change:
                self._stop_clock()
        except OverBudget:
            pass  # It was raised as the compilation ended: `is_over` says so.

    def abandon(self) -> None:
        """A compilation of this thread was given up: OverBudget is not raised in it any more."""
        with self._change:
            self._stop_clock()
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(get_ident()), None)

    def close(self) -> None:
        """Nothing is bounded from here on: what was compiled is kept, or nothing is compiled any more."""
        with self._change:
            self._is_closed = True
            self._stop_clock()

    def _stop_clock(self) -> None:
        if self._thread:
            self._spent_s += monotonic() - self._since_s
        self._thread = 0
        self._change.notify()

    def _watch(self) -> None:
        with self._change:
            while not self._is_closed:
                if not self._thread:
                    self._change.wait()
                    continue
                left_s = self.limit_s - self._spent_s - (monotonic() - self._since_s)
                if left_s <= 0:
                    break
                self._change.wait(left_s)
            if self._is_closed:
                return
            self.is_over = True
        self._give_up()

    def _give_up(self) -> None:
        raised_s = float("-inf")
        quiet_since_s = monotonic()
        while self._thread or monotonic() < quiet_since_s + QUIET_S:
            now_s = monotonic()
            with self._change:
                if self._thread and now_s >= raised_s + RAISE_AGAIN_S:
                    raised_s = now_s
                    _raise_in(self._thread)
            if kill_compilers():
                quiet_since_s = now_s
            threading.Event().wait(KILL_AGAIN_S)


def _raise_in(thread: int) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(OverBudget))


def kill_compilers() -> int:
    """Kill the processes that compile for this one; return how many there were."""
    killed = 0
    for pid in find_compiling(_processes(), os.getpid()):
        try:
            os.kill(pid, signal.SIGKILL)
            killed += 1
        except OSError:
            pass  # It has ended.
    return killed


def find_compiling(processes: "Processes", parent_pid: int) -> "list[int]":
    """Return which of *processes*, (parent, command line) by pid, compile for the process *parent_pid*, parents first.

    These are inductor's compilers with all that they started, and the workers of its compile worker. That one itself
    stays: torch waits for its answer, which tells that its workers are gone.
    """
    pids = []
    for pid, (parent, command) in processes.items():
        if parent != parent_pid:
            continue
        if WORKERS in command:
            pids += _below(processes, pid)
        elif _is_a_compiler(command):
            pids += [pid, *_below(processes, pid)]
    return pids


def _is_a_compiler(command: str) -> bool:
    """True for a compiler of torch's generated code, which lies in a folder of inductor; the script may have others."""
    # Two words: a compiler may be a script, which its interpreter runs, or be called by another program.
    programs = [os.path.basename(word) for word in command.split("\0")[:2]]
    compiler = os.path.basename((os.environ.get("CXX") or "g++").split()[0])
    cache = os.environ.get("TORCHINDUCTOR_CACHE_DIR") or "torchinductor"
    return cache in command and any(program == compiler or program.startswith(COMPILERS) for program in programs)


def _below(processes: "Processes", top: int) -> "list[int]":
    children = [pid for pid, (parent, _) in processes.items() if parent == top]
    return children + [descendant for child in children for descendant in _below(processes, child)]


def _processes() -> "Processes":
    processes = {}
    for name in _numbers("/proc"):
        try:
            with open("/proc/%s/stat" % name, "rb") as file:
                parent = int(file.read().rpartition(b")")[2].split()[1])
            with open("/proc/%s/cmdline" % name, "rb") as file:
                processes[int(name)] = (parent, file.read().decode(errors="replace"))
        except (OSError, ValueError, IndexError):
            continue  # It has ended.
    return processes


def _numbers(folder: str) -> "Iterable[str]":
    try:
        return [name for name in os.listdir(folder) if name.isdigit()]
    except OSError:
        return []
