"""Joins a rank to the others of its job in JAX, and lets it end promptly. The rank hook loads it by its path (site/),
in ranks of distribution jax.

The behaviour of JAX 0.10.2, as tried on CPUs, and the remedies:

- `jax.distributed.initialize()` takes the coordinator's address from the environment, the number of processes and the
  rank only from Slurm, MPI or a TPU's metadata. Here it gets what the script did not give from the job's variables.
- At its end each process waits in a barrier for all others, at most 300 s, also one that failed, while the others wait
  for it in a collective. Here a process that ends with an exception, or by sys.exit with another code than 0, does not
  enter the barrier, and ends by os._exit after all functions of atexit have run: C++ would wait again.
- `initialize` waits for all processes, at most 300 s, also for one that has ended. Here it fails as soon as a rank of
  the job has ended with 0: `train` shows each rank the first one that did (status_layout.DONE_NAME).
- gloo listens at the address of the machine's own name. Here it listens on the interface in GLOO_SOCKET_IFNAME.
- A process that ends well enters the barrier. One that waits there for CUT_S closes its connections of gloo, so that
  whoever waits for it in a collective fails at once instead of after 300 s; whoever still works without it is not
  disturbed. It has no collective under way itself: with one device JAX's CPU client returns from a collective only when
  it has ended (tried; with several devices it does not, and nothing is closed).

Names of JAX that are missing (another version) are left out, each with what depends on it.
"""

import os
import sys

CUT_S = 0.5
# How often a rank that waits for the others checks whether one of them has ended, and how long it waits after that: the
# rank may have been the last to join, with this one's call about to return.
POLL_S = 0.2
LATE_S = 1.0
INTERRUPTED = 130  # Of KeyboardInterrupt, for which Python ends by SIGINT.
TYPE_CHECKING = False  # As typing's, without importing it.
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import ModuleType
    from typing import Any

JAX = "jax"
DONE_NAME = "rank-done"  # As in status_pages/layout.py.
# The parameter of initialize: the variable with its value.
NUMBERS = {"num_processes": "JAX_NUM_PROCESSES", "process_id": "JAX_PROCESS_ID"}


class RankEnd:
    """The end of this process, as far as it is known. `code`: its exit code once that is certain, else None."""

    def __init__(self) -> None:
        self.code: "int | None" = None
        self.is_joined = False

    def note_status(self, status: "Any") -> "Any":
        """Return a value for sys.exit to raise SystemExit with in place of *status*: equal to it, but it notes when the
        exception reaches the top (a script may also catch it)."""
        code = _code(status)
        if not code or type(status) not in (int, str):
            return status
        ending = self

        class Status(type(status)):  # type: ignore[misc]
            def __del__(self) -> None:
                # Python drops the exception at the top, where no frame is left, before atexit's functions run.
                if sys._getframe().f_back is None:
                    ending.code = code

        Status.__name__ = type(status).__name__
        return Status(status)

    def end_process(self) -> None:
        """End here if this process failed, since JAX's destructors wait for others: the last of atexit's functions."""
        if self.is_joined and self.code is not None:
            for stream in (sys.stdout, sys.stderr):
                try:
                    stream.flush()
                except Exception:  # noqa: BLE001
                    pass  # Closed, or its reader is gone: the code is what counts.
            if self.code == INTERRUPTED:
                import signal

                signal.signal(signal.SIGINT, signal.SIG_DFL)
                os.kill(os.getpid(), signal.SIGINT)
            os._exit(self.code)


class JaxDistributed:
    """Replaces the functions of the same names in *module*, JAX's. *record_end* writes a file that the script ended
    well, and returns its path. *private*: rank/frameworks/jax.py."""

    def __init__(self, module: "ModuleType", private: "Any", ending: RankEnd, record_end: "Callable[[], str]") -> None:
        self._initialize = module.initialize
        self._shutdown = module.shutdown
        self._ending = ending
        self._record_end = record_end
        self._ends = False
        self._pid = os.getpid()
        self._private = private
        self._cutter: "Cutter | None" = None

    def initialize(self, *args: "Any", **keywords: "Any") -> None:
        """Call JAX's own function with the script's arguments, and the job's values for those that it omits."""
        import atexit
        import inspect

        parameters = inspect.signature(self._initialize).parameters
        keywords.update(zip(parameters, args))  # noqa: B905 - any Python 3
        arguments = complete_arguments(keywords, tuple(parameters), os.environ)
        if self._cutter is None:
            self._cutter = Cutter(self._private)
            self._ending.is_joined = True
            atexit.register(self._note_end)  # Called before JAX's own function, which was registered at its import.
        for line in describe_differences(keywords, os.environ):
            sys.stderr.write("[toolkit] warning: %s\n" % line)
        if str(arguments.get("num_processes")) == os.environ.get("WORLD_SIZE"):
            join(lambda: self._initialize(**arguments), arguments["num_processes"])
        else:  # Of processes that the job does not know: any may still come.
            self._initialize(**arguments)

    def shutdown(self) -> None:
        """Wait for the other processes, unless this one fails or the script is handling an exception."""
        if self._cutter is None or self._pid != os.getpid():  # A forked child has no part in the rank's connection.
            return
        if self._ending.code is not None or (sys.exc_info()[0] is not None and not self._ends):
            return
        # A script that calls it is not at its end, but no rank can reach it in a collective any more.
        path = self._record_end()
        self._cutter.check_devices()
        self._cutter.begins.set()
        try:
            self._shutdown()
        finally:
            self._cutter.over.set()
            if path and not self._ends:
                os.unlink(path)

    def _note_end(self) -> None:
        """The interpreter ends: note how, before JAX does anything about it."""
        value = getattr(sys, "last_value", None)
        if self._ending.code is None and is_uncaught(value):
            self._ending.code = INTERRUPTED if isinstance(value, KeyboardInterrupt) else 1
        self._ends = True
        if self._cutter is not None:
            self._cutter.check_devices()


def join(initialize: "Callable[[], None]", processes: int) -> None:
    """Call *initialize*, which waits for all *processes* of the job, and wait no longer than all of them can come.

    It runs in a thread, since nothing interrupts it.

    Raises:
        RuntimeError: a rank of the job has ended with 0 before all had joined.
    """
    import contextvars
    import threading
    import time

    errors: "list[BaseException]" = []
    is_over = threading.Event()

    def call() -> None:
        try:
            initialize()
        except BaseException as error:  # noqa: BLE001
            errors.append(error)
        is_over.set()

    threading.Thread(target=contextvars.copy_context().run, args=(call,), name="toolkit-jax-join", daemon=True).start()
    first_ended_s = None
    while not is_over.wait(POLL_S):
        rank = _done_rank()
        if rank and first_ended_s is None:
            first_ended_s = time.monotonic()
        elif rank and first_ended_s is not None and time.monotonic() > first_ended_s + LATE_S:
            raise RuntimeError(
                "expected all %d processes in jax.distributed.initialize, but %s has ended with 0 and will not join"
                % (processes, rank)
            )
    if errors:
        raise errors[0]


def _done_rank() -> str:
    """Return the first rank of the job that ended with 0 ("rank 1 of host algo-2"), "" if there is none."""
    try:
        with open(os.path.join(os.environ["TOOLKIT_STATUS_FOLDER"], DONE_NAME)) as file:
            return file.read()
    except (KeyError, OSError):
        return ""


class Cutter:
    """Closes gloo's connections to the other processes CUT_S after `begins` is set, unless `over` is set before."""

    def __init__(self, private: "Any") -> None:
        import threading

        self._private = private
        self.begins = threading.Event()
        self.over = threading.Event()
        self._polls: "list[int]" = []  # The epoll descriptors through which gloo polls its sockets.
        self._may_cut = False
        self._watch_gloo()
        # Now: from Python 3.12 on no thread can be started while the interpreter ends.
        threading.Thread(target=self._run, name="toolkit-jax-end", daemon=True).start()

    def check_devices(self) -> None:
        """Check whether a collective can be under way here, while JAX has its devices (at its end it drops them)."""
        self._may_cut = self._may_cut or self._private.has_one_cpu_device()

    def _run(self) -> None:
        self.begins.wait()
        if self.over.wait(CUT_S) or not self._may_cut:
            return
        for poll in self._polls:
            for fd in polled_descriptors(poll):
                _hang_up(fd)

    def _watch_gloo(self) -> None:
        def watched(make: "Callable[..., Any]") -> "Callable[..., Any]":
            def make_watched(*args: "Any", **keywords: "Any") -> "Any":
                epolls_before = set(_epolls())
                # Else gloo takes the address of the machine's own name: 127.0.1.1 on many, none on some.
                interface = _interface(os.environ)
                if len(args) < 2 and interface and not keywords.get("hostname") and not keywords.get("interface"):
                    keywords["interface"] = interface
                collectives = make(*args, **keywords)
                self._polls += [fd for fd in _epolls() if fd not in epolls_before]
                return collectives

            return make_watched

        self._private.replace_gloo(watched)


def watch(import_hooks: "Any", record_end: "Callable[[], str]") -> RankEnd:
    """Attach to JAX when the script imports it; *import_hooks*: rank/mesh/import_hooks.py."""
    ending = RankEnd()

    def load(loader: "Any", module: "ModuleType") -> None:
        loader.exec_module(module)
        try:
            attach(module)
        except Exception as error:  # noqa: BLE001 - a JAX of another form must still work
            sys.stderr.write("[toolkit] jax.distributed runs as it is: %s: %s\n" % (type(error).__name__, error))

    def attach(module: "ModuleType") -> None:
        import importlib

        private = importlib.import_module(import_hooks.package() + ".rank.frameworks.jax")
        own = private.find_distributed()
        if own is not None and not hasattr(own.initialize, "__wrapped__"):  # Not yet: jax may be loaded again.
            distributed = JaxDistributed(own, private, ending, record_end)
            own.initialize = _replace(own.initialize, distributed.initialize)
            own.shutdown = _replace(own.shutdown, distributed.shutdown)
            public = getattr(module, "distributed", None)  # It has the functions from the other module by now.
            if public is not None:
                public.initialize, public.shutdown = own.initialize, own.shutdown

    import_hooks.watch(JAX, load)
    return ending


def _replace(original: "Callable[..., None]", replacement: "Callable[..., None]") -> "Callable[..., None]":
    """Return *replacement* as a function with the name, signature and docstring of *original*."""
    import functools

    @functools.wraps(original)
    def call(*args: "Any", **keywords: "Any") -> None:
        replacement(*args, **keywords)

    return call


def complete_arguments(
    arguments: "Mapping[str, Any]", parameters: "tuple[str, ...]", environ: "Mapping[str, str]"
) -> "dict[str, Any]":
    """Return the arguments for JAX's initialize: *arguments* by the script, and the job's for those that are missing.

    With a way of detection of the script's own, nothing is added. Otherwise JAX's detection is switched off where the
    job gives everything: on a node of Slurm it would give each process one GPU.
    """
    completed_arguments = dict(arguments)
    if completed_arguments.get("cluster_detection_method") is not None:
        return completed_arguments
    for name, variable in NUMBERS.items():
        if completed_arguments.get(name) is None and environ.get(variable, "").isdigit():
            completed_arguments[name] = int(environ[variable])
    address = completed_arguments.get("coordinator_address") or environ.get("JAX_COORDINATOR_ADDRESS")
    is_whole = address and all(completed_arguments.get(name) is not None for name in NUMBERS)
    if is_whole and "cluster_detection_method" in parameters:
        completed_arguments["cluster_detection_method"] = "deactivate"
    return completed_arguments


def describe_differences(arguments: "Mapping[str, Any]", environ: "Mapping[str, str]") -> "list[str]":
    """Return a line for each argument of the script that contradicts the job; JAX's own error names none of them."""
    job = {name: environ.get(variable) for name, variable in NUMBERS.items()}
    job["coordinator_address"] = environ.get("JAX_COORDINATOR_ADDRESS")
    return [
        "the script gives jax.distributed.initialize %s=%s, the job has %s" % (name, arguments[name], value)
        for name, value in sorted(job.items())
        if value is not None and arguments.get(name) is not None and str(arguments[name]) != value
    ]


def is_uncaught(value: "BaseException | None") -> bool:
    """True if *value*, sys.last_value, left the main module; what an interactive console has shown did not."""
    trace = getattr(value, "__traceback__", None)
    return trace is not None and trace.tb_frame.f_back is None


def _code(status: "Any") -> int:
    if status is None:
        return 0
    return int(status) & 0xFF if isinstance(status, int) else 1


def _interface(environ: "Mapping[str, str]") -> str:
    """Return the network interface that leads to the other ranks, "" if the job names none."""
    if environ.get("JAX_COORDINATOR_ADDRESS", "").startswith("127."):
        return "lo"
    return environ.get("GLOO_SOCKET_IFNAME", "").partition(",")[0].strip()


def _epolls() -> "Iterator[int]":
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink("/proc/self/fd/" + name) == "anon_inode:[eventpoll]":
                yield int(name)
        except OSError:
            pass  # Closed meanwhile, as the folder's own is.


def polled_descriptors(poll: int) -> "list[int]":
    """Return the descriptors that epoll descriptor *poll* watches."""
    try:
        with open("/proc/self/fdinfo/%d" % poll) as lines:
            return [int(line.split()[1]) for line in lines if line.startswith("tfd:")]
    except OSError:
        return []


def _hang_up(fd: int) -> None:
    import socket
    import stat

    try:
        if stat.S_ISSOCK(os.fstat(fd).st_mode):
            with socket.socket(fileno=os.dup(fd)) as connection:
                connection.getpeername()  # Gloo aborts the process if the socket on which it listens is shut down.
                connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # The one that listens, or it is closed by now.
