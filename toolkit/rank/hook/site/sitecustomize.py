"""The rank hook: runs at the start of every Python below `train`, because its folder is first in PYTHONPATH.

Goals: almost no cost, any Python 3, no visible effect. It removes its folder from sys.path, does its work, and runs the
sitecustomize that would have run without it. `python -I` and `-E` ignore it. TOOLKIT_RANK_HOOK=off disables it.

It is one file on purpose: the start of every Python pays for it. It costs 1.7 million instructions (0.4 ms); with the
record of exceptions in a second file it cost 3.8 million (cachegrind, Python 3.11). Features that only some jobs need
are in other files, which `_load` loads.

torch 2.13 with gloo on Python 3.11 aborts 30 to 40 % of finished runs at interpreter exit ("terminate
called without an active exception", SIGABRT): the thread pt_gloo_runloop drops its last Work while the interpreter is
being finalised, needs the GIL in a destructor, and is unwound inside a noexcept function. It needs a
moment before the finalisation, so an atexit function, registered first and run last, waits 0.1 s if such a thread
lives (measured: 0 of 40 runs abort). It does not change any other SIGABRT.

If TOOLKIT_STATUS_FOLDER is set, the hook records an exception that ends the process or one of its threads, before
Python prints it, as `raised-<pid>.json` in that folder (toolkit/status_pages/layout.py): type, place, time and
traceback. Printed tracebacks can get lost, cut or mixed with other output. The previous excepthook then prints it as
usual. If the script later sets a hook of its own (rich, loguru), Python keeps the exception in sys.last_value, and the
hook records it when the interpreter ends. It also records sys.exit with a code, with the exception that the script was
handling: Horovod's ranks all end at the same time, so the end alone does not show which failed first. And it records
the end of a rank without either: torch takes half a second from there to the end of the process, and other ranks may
have lost this one by then.

It also:
- joins a rank of distribution jax to the others, and lets it end without waiting for them (rank/hook/jax_rank.py);
- completes torch_xla at its import in a rank of several, or of the pytorchxla launcher (toolkit/rank/xla);
- writes the collectives of a rank to the folder TOOLKIT_COLLECTIVES when `train` asks (toolkit/rank/flight_recorder);
- compiles the models that train, as TOOLKIT_COMPILER says (toolkit/rank/compiler);
- measures the steps of a rank, if TOOLKIT_STEP_TIMES=on, and traces those of TOOLKIT_PROFILE_WINDOW
  (toolkit/rank/profiler);
- reads the .pth files in the folder TOOLKIT_PACKAGES (toolkit/train/source/packages.py);
- appends the folders in TOOLKIT_COMPAT_PATH to sys.path (toolkit/rank/compat);
- makes socket.gethostname() return TOOLKIT_HOST_NAME (ranks under mpirun);
- sets SMDATAPARALLEL_LOCAL_RANK in a rank of SageMaker's data parallel library, for Hugging Face's Trainer.
"""

RAISED_BYTES = 64 * 1024  # of a traceback's text; the middle of a longer one is left out
HEAD_BYTES = 16 * 1024
GAPS = " \t\n\"'`"  # Between words, where a text is cut; a word of more than WORD_CHARACTERS is cut itself.
WORD_CHARACTERS = 256
MESSAGE_CHARACTERS = 8 * 1024  # of an exception's message, its beginning
BEHIND = 16  # exceptions that another one was raised from
BEHIND_CHARACTERS = 1024  # of the message of each
FRAMES = 64  # of an exception, the innermost; of frames of one file in a row only the innermost
BEHIND_FRAMES = 16
OUTPUT_CHARACTERS = 4096  # of the captured output of a command that failed, its end

_jax: "Any" = None  # The end of a rank of distribution jax (rank/hook/jax_rank.py).

TYPE_CHECKING = False  # As typing's, without importing it.
if TYPE_CHECKING:
    from threading import ExceptHookArgs
    from types import TracebackType
    from typing import Any, NoReturn


def _leave_path() -> None:
    import os
    import sys

    own_folder = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != own_folder]


def _run_next_sitecustomize() -> None:
    import sys

    own_module = sys.modules.pop("sitecustomize", None)
    try:
        # The next one on sys.path: this folder has left it.
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    except ImportError as error:
        if own_module is None or error.name != "sitecustomize":
            raise
        sys.modules["sitecustomize"] = own_module


def _let_gloo_finish() -> None:
    import os
    import sys
    import time

    if "torch" not in sys.modules:
        return
    try:
        for thread in os.listdir("/proc/self/task"):
            with open("/proc/self/task/%s/comm" % thread, "rb") as comm:  # The kernel cuts names inside a character.
                if comm.read().strip() == b"pt_gloo_runloop":
                    time.sleep(0.1)
                    return
    except OSError:
        time.sleep(0.1)


def _install_excepthook() -> None:
    import os
    import sys

    folder = os.environ.get("TOOLKIT_STATUS_FOLDER")
    if not folder:
        return
    import _thread

    previous_hook = sys.excepthook

    def excepthook(kind: "type[BaseException]", value: BaseException, trace: "TracebackType | None") -> None:
        if not _script_runs():  # Else a script only shows what it has caught, as code.interact does.
            _record(folder, kind, value, trace)
        previous_hook(kind, value, trace)

    sys.excepthook = excepthook
    _note_exits(folder)
    _note_unfinished_mpi(folder)
    _note_last_exception(folder)
    # threading takes its default hook from here when it is imported (from 3.8 on). Importing it costs 5 ms.
    before_in_thread = getattr(_thread, "_excepthook", None)
    if before_in_thread is None:
        return

    def excepthook_in_thread(args: "ExceptHookArgs") -> None:
        _record(folder, args.exc_type, args.exc_value, args.exc_traceback)
        before_in_thread(args)

    _thread._excepthook = excepthook_in_thread
    if "threading" in sys.modules:
        import threading

        if threading.excepthook is before_in_thread:
            threading.excepthook = excepthook_in_thread


def _record(
    folder: str, kind: "type[BaseException]", value: "BaseException | None", trace: "TracebackType | None"
) -> None:
    try:
        import os

        time_ns = _now_ns()
        path = os.path.join(folder, "raised-%d.json" % os.getpid())
        thread = "main" if _in_main_thread() else "other"
        # Python itself ends by SIGINT for a KeyboardInterrupt, but with code 1 for a subclass of it.
        is_no_error = kind is KeyboardInterrupt or issubclass(kind, SystemExit)
        if is_no_error or (thread == "other" and os.path.exists(path)):
            return
        record = {"time_ns": time_ns, "thread": thread, "parent": os.getppid()}
        record.update(_describe(kind, value, trace, FRAMES))
        name, message = record["kind"], record["message"]
        # First without the traceback: importing `traceback` may take seconds from a slow disk, and there may be no
        # memory for its text. The message is needed to tell a cause from a collateral failure.
        record["behind"] = _describe_chain(value)
        _write(path, dict(record, text="%s: %s" % (name, message) if message else name))
        _write(path, dict(record, text=_format(kind, value, trace)))
    except BaseException:  # noqa: BLE001
        pass  # An error here must not hide the script's own exception, which is printed after this.


def _script_runs() -> bool:
    """True while the main module runs; an exception that ends the process has left it."""
    import sys

    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code.co_name in ("<module>", "_run_module_as_main")  # Of a script; of a module (python -m).


def _describe(
    kind: "type[BaseException]", value: "BaseException | None", trace: "TracebackType | None", most_frames: int
) -> "dict[str, Any]":
    """Return an exception's type as Python prints it, its message with its notes, its frames, the innermost first, and
    the output of the command whose failure it reports."""
    name = kind.__qualname__
    if kind.__module__ not in ("builtins", "__main__"):
        name = "%s.%s" % (kind.__module__, name)
    message = ""
    try:
        message = str(value)
        for note in getattr(value, "__notes__", ()):
            message += "\n" + str(note)
    except Exception:  # noqa: BLE001
        pass  # A message that cannot be made: the type and the place are known.
    frames, file = [], None  # type: list[str], str | None
    while trace is not None:
        code = trace.tb_frame.f_code
        # tb_lineno is None in an instruction without a line (3.10 and newer).
        frame = "%s:%s in %s" % (code.co_filename, trace.tb_lineno or "?", code.co_name)
        if code.co_filename == file:
            frames[-1] = frame  # A library that calls itself a thousand times must not hide who called it.
        else:
            frames.append(frame)
        file, trace = code.co_filename, trace.tb_next
    message = _cut_beginning(message, MESSAGE_CHARACTERS)
    description = {"kind": name, "message": message, "place": frames[-1] if frames else ""}  # type: dict[str, Any]
    description["frames"] = frames[::-1][:most_frames]
    output = _captured_output(value)
    if output:
        description["captured_output"] = output
    return description


def _cut_beginning(text: str, room: int) -> str:
    """Return *text*, or its beginning, cut between words: of a secret that is cut, nothing recognises the rest."""
    if len(text) <= room:
        return text
    gap = max(text.rfind(character, room - WORD_CHARACTERS, room + 1) for character in GAPS)
    return text[: gap if gap >= 0 else room]


def _cut_end(text: str, room: int) -> str:
    """Return *text*, or its end, cut between words."""
    first = len(text) - room
    if first <= 0:
        return text
    gaps = [text.find(character, first - 1, first + WORD_CHARACTERS) for character in GAPS]
    return text[min([gap + 1 for gap in gaps if gap >= 0] or [first]) :]


def _captured_output(value: "BaseException | None") -> str:
    """Return the end of what a command wrote whose failure *value* reports, if it was captured: nothing prints it."""
    try:
        if not hasattr(value, "returncode"):
            return ""
        for name in ("stderr", "output"):  # subprocess.CalledProcessError's; `stdout` is another name of `output`.
            output = getattr(value, name, None)
            text = output.decode("utf-8", "replace") if isinstance(output, bytes) else output
            if isinstance(text, str) and text.strip():
                return _cut_end(text, OUTPUT_CHARACTERS)
    except Exception:  # noqa: BLE001
        pass  # Another library's exception: its attributes may do anything.
    return ""


def _printed_chain(value: "BaseException") -> "list[tuple[BaseException, str]]":
    """Return the exceptions behind *value* that Python prints before it, the nearest first, and how each led to the
    one after it: "cause" (raise ... from) or "context" (it was being handled). Of a long chain the first one stays."""
    chain, visited, last = [], [value], value  # type: list[tuple[BaseException, str]], list[BaseException], BaseException
    while len(visited) < 1000:
        link, how = last.__cause__, "cause"
        if link is None and not last.__suppress_context__:
            link, how = last.__context__, "context"
        if link is None or any(link is earlier for earlier in visited):
            break
        chain.append((link, how))
        visited.append(link)
        last = link
    return chain if len(chain) < BEHIND else chain[: BEHIND - 1] + chain[-1:]


def _describe_chain(value: "BaseException | None") -> "list[dict[str, Any]]":
    """Return the exceptions that *value* was raised from, or while they were handled: first those that Python prints,
    then the others with the members of groups. `raise ... from None` keeps those out of the printed traceback only."""
    if value is None:
        return []
    chain = []  # type: list[tuple[BaseException, str]]
    exceptions = [value]
    try:
        chain = _printed_chain(value)
        exceptions += [link for link, _ in chain]
        for exception in exceptions:
            links = (getattr(exception, "__cause__", None), getattr(exception, "__context__", None))
            members = getattr(exception, "exceptions", ()) if exception is not value else ()
            for link in links + (members if isinstance(members, tuple) else ()):
                if (
                    len(exceptions) <= BEHIND
                    and isinstance(link, BaseException)
                    and not any(link is earlier for earlier in exceptions)
                ):
                    exceptions.append(link)
    except Exception:  # noqa: BLE001
        pass  # Those found so far are recorded.
    descriptions = []
    for index, exception in enumerate(exceptions[1:]):
        description = _describe(type(exception), exception, exception.__traceback__, BEHIND_FRAMES)
        description["message"] = _cut_beginning(description["message"], BEHIND_CHARACTERS)
        if index < len(chain):
            description["link"] = chain[index][1]
        descriptions.append(description)
    return descriptions


def _format(kind: "type[BaseException]", value: "BaseException | None", trace: "TracebackType | None") -> str:
    import traceback

    # As many of the innermost frames as Python itself prints: a million take half a minute.
    return "".join(traceback.format_exception(kind, value, trace, limit=-1000))


def _note_exits(folder: str) -> None:
    """Let sys.exit with another code than 0 write a record once the interpreter begins to end, before any other atexit
    function is called. (One that the script catches writes none until then, and an exception's comes before it.)
    The same holds for exit() and quit(), which site makes.
    """
    import atexit
    import builtins
    import os
    import sys

    leave = sys.exit
    # `train` starts each rank in a session of its own; what a rank starts is in the rank's.
    if os.getsid(0) == os.getpid():
        atexit.register(_record_end, folder, os.getpid())

    def exit(status: "str | int | None" = None) -> "NoReturn":
        _note_exit(folder, status)
        leave(_exit_status(status))

    sys.exit = exit
    quitter = type(getattr(builtins, "exit", None))
    if quitter.__name__ != "Quitter":
        return
    quit = quitter.__call__

    def call(self: "Any", code: "str | int | None" = None) -> None:
        _note_exit(folder, code)
        quit(self, _exit_status(code))

    quitter.__call__ = call  # type: ignore[method-assign]


def _exit_status(status: "Any") -> "Any":
    return status if _jax is None else _jax.note_status(status)


def _record_end(folder: str, pid: int) -> None:
    _record_exit(folder, pid, {"time_ns": _now_ns(), "kind": "SystemExit", "thread": "main", "code": 0, "text": ""})


def _note_exit(folder: str, status: "str | int | None") -> None:
    try:
        import atexit
        import os

        code = 0 if status is None else int(status) & 0xFF if isinstance(status, int) else 1
        if code and _in_main_thread():
            atexit.register(_record_exit, folder, os.getpid(), _describe_exit(status, code))
    except Exception:  # noqa: BLE001
        pass  # The script's end is what counts.


def _describe_exit(status: "str | int | None", code: int) -> "dict[str, Any]":
    """Return a record of a call of sys.exit, with the exception that was being handled."""
    import os
    import sys

    record = {"time_ns": _now_ns(), "kind": "SystemExit", "thread": "main", "code": code, "text": ""}  # type: dict[str, Any]
    record["parent"] = os.getppid()
    try:
        frame = sys._getframe(3)  # The caller of `exit`, if it is no C code.
        record["place"] = "%s:%d in %s" % (frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
    except ValueError:
        pass
    try:
        record["message"] = "" if isinstance(status, int) else _cut_beginning(str(status), MESSAGE_CHARACTERS)
        _, value, trace = sys.exc_info()
        if value is None and not _script_runs():  # In a hook that shows what ends the process.
            value, trace = getattr(sys, "last_value", None), getattr(sys, "last_traceback", None)
        if isinstance(value, Exception):
            record["handling"] = _describe(type(value), value, trace, FRAMES)
            record["behind"] = _describe_chain(value)
            record["text"] = _format(type(value), value, trace)
    except Exception:  # noqa: BLE001
        pass  # The rest is recorded.
    return record


def _record_exit(folder: str, pid: int, record: "dict[str, Any]") -> None:
    import os

    path = os.path.join(folder, "raised-%d.json" % pid)
    try:
        if pid == os.getpid() and not os.path.exists(path):
            _write(path, record)
    except Exception:  # noqa: BLE001
        pass


def _note_unfinished_mpi(folder: str) -> None:
    """Let a rank of MPI that leaves by os._exit(0), before MPI_Finalize, write a record: the others then wait for it,
    and MPICH does not notice."""
    import os

    if os.getsid(0) != os.getpid() or not ("PMI_RANK" in os.environ or "OMPI_COMM_WORLD_RANK" in os.environ):
        return
    if "TORCHELASTIC_RUN_ID" in os.environ:  # torchrun's ranks, which have MPI's names in a job for smddp.
        return
    rank = os.getpid()

    def record_end() -> None:
        record = {
            "time_ns": _now_ns(),
            "kind": "SystemExit",
            "thread": "main",
            "code": 0,
            "text": "",
            "unfinished": "MPI",
        }
        _record_exit(folder, rank, record)

    _load("hook", "mpi_exit").watch(record_end)


def _note_last_exception(folder: str) -> None:
    """Record, when the interpreter ends, an exception that a hook of the script's own has printed."""
    import atexit

    atexit.register(_record_last_exception, folder)


def _record_last_exception(folder: str) -> None:
    import os
    import sys

    value = getattr(sys, "last_value", None)
    if value is not None and not os.path.exists(os.path.join(folder, "raised-%d.json" % os.getpid())):
        _record(folder, type(value), value, getattr(sys, "last_traceback", None))


def _now_ns() -> int:
    import time

    return int(time.monotonic() * 1e9) if not hasattr(time, "monotonic_ns") else time.monotonic_ns()


def _in_main_thread() -> bool:
    import _thread
    import os

    # Linux: the main thread's id is the process's, also in a child that another thread forked. Before 3.8 only the
    # main thread comes here.
    return getattr(_thread, "get_native_id", os.getpid)() == os.getpid()


def _write(path: str, record: "dict[str, Any]") -> None:
    import os

    line = (_json(record) + "\n").encode("utf-8")
    unfinished = "%s.%d" % (path, id(record))  # Of this thread alone.
    fd = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        is_complete = os.write(fd, line) == len(line)
    finally:
        os.close(fd)
    if is_complete:
        os.rename(unfinished, path)
    else:
        os.unlink(unfinished)


def _json(value: "dict[str, Any] | list[Any] | str | int") -> str:
    """Return *value* as JSON. By hand: json's import would cost more than all the rest."""
    if isinstance(value, dict):
        return "{%s}" % ", ".join('"%s": %s' % (name, _json(value[name])) for name in value)
    if isinstance(value, list):
        return "[%s]" % ", ".join(_json(element) for element in value)
    if isinstance(value, int):
        return "%d" % value
    escapes = {code: "\\u%04x" % code for code in range(32)}
    escapes.update({ord('"'): '\\"', ord("\\"): "\\\\"})
    return '"%s"' % _shorten(value).translate(escapes)


def _shorten(text: str) -> str:
    encoded = text.encode("utf-8", "backslashreplace")
    if len(encoded) <= RAISED_BYTES:
        return encoded.decode()
    gap = "\n... the middle of this text was too long to be kept ...\n"
    start = encoded[:HEAD_BYTES].decode("utf-8", "ignore")
    rest = encoded[HEAD_BYTES + len(gap) - RAISED_BYTES :].decode("utf-8", "ignore")
    return _cut_beginning(start, len(start) - 1) + gap + _cut_end(rest, len(rest) - 1)


def _arm_stacks() -> None:
    """Register a signal that writes the stacks of all threads to a file, if `train` watches for hangs
    (TOOLKIT_STALL_S)."""
    import os

    number, _, folder = os.environ.get("TOOLKIT_STACKS", "").partition(":")
    if not folder:
        return
    try:
        import faulthandler

        file = open(os.path.join(folder, str(os.getpid())), "w")  # noqa: SIM115 - open as long as the process lives
        faulthandler.register(int(number), file=file, all_threads=True)
    except (ImportError, OSError, ValueError):
        pass  # No stacks of this process, then.


def _read_pth() -> None:
    """Read the .pth files of the job's packages: their folder is in PYTHONPATH, where Python reads none."""
    import os

    folder = os.environ.get("TOOLKIT_PACKAGES")
    if folder:
        import site

        site.addsitedir(folder)


def _open_compat() -> None:
    """Make the old import names that the job asks for importable, after everything that is installed."""
    import os
    import sys

    for folder in os.environ.get("TOOLKIT_COMPAT_PATH", "").split(":"):
        if folder and folder not in sys.path:
            sys.path.append(folder)


def _name_host() -> None:
    """Make socket.gethostname() return this host's name in the job."""
    import os
    import sys

    name = os.environ.get("TOOLKIT_HOST_NAME")
    if not name:
        return
    import _socket

    def gethostname() -> str:
        return name

    _socket.gethostname = gethostname  # socket takes its functions from here when it is imported.
    if "socket" in sys.modules:
        sys.modules["socket"].gethostname = gethostname  # type: ignore[attr-defined]


def _name_local_rank() -> None:
    """Set a smddp rank's local rank under the name that AWS's launcher uses."""
    import os

    if not any("SMDATAPARALLEL_USE_" + kind in os.environ for kind in ("SINGLENODE", "HOMOGENEOUS")):
        return
    for name in ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"):
        if name in os.environ:
            os.environ.setdefault("SMDATAPARALLEL_LOCAL_RANK", os.environ[name])
            return


def _await_frameworks() -> None:
    """Have rank/xla complete torch_xla, which otherwise takes one of several ranks for a single one; have rank/profiler
    measure the steps of this process, rank/flight_recorder write its collectives on request, and rank/compiler compile
    its models, if the job asks."""
    import os
    import sys

    # toolkit/rank/xla is written for the Pythons that torch_xla 2 runs on.
    if sys.version_info >= (3, 10) and (os.environ.get("WORLD_SIZE", "1") != "1" or "TOOLKIT_XLA" in os.environ):
        _load("xla", "arrival").watch(_load("mesh", "import_hooks").watch)
    if os.environ.get("TOOLKIT_COMPAT_PATH", "").endswith("/smp") or "/smp:" in os.environ.get(
        "TOOLKIT_COMPAT_PATH", ""
    ):
        _load("modelparallel", "transformers_hooks").watch(_load("mesh", "import_hooks").watch)
    is_measured = os.environ.get("TOOLKIT_STEP_TIMES") == "on" or "TOOLKIT_PROFILE_WINDOW" in os.environ
    if is_measured and sys.version_info >= (3, 8):
        _load("profiler", "arrival").watch(_load("mesh", "import_hooks"))
        if os.environ.get("TOOLKIT_STEP_TIMES") == "on":
            _load("profiler", "import_clock").watch()
    if "TOOLKIT_COLLECTIVES" in os.environ and sys.version_info >= (3, 8):
        _load("flight_recorder", "torch_arrival").watch(_load("mesh", "import_hooks"))
    if "TOOLKIT_COMPILER" in os.environ and sys.version_info >= (3, 8):
        _load("compiler", "arrival").watch(_load("mesh", "import_hooks"))


def _await_jax() -> None:
    """Have rank/hook/jax_rank.py attach to JAX in a rank of distribution jax."""
    import atexit
    import os
    import sys

    global _jax
    if "TOOLKIT_JAX" not in os.environ or sys.version_info < (3, 8):
        return
    folder, pid = os.environ.get("TOOLKIT_STATUS_FOLDER"), os.getpid()

    def record_end() -> str:
        path = os.path.join(folder or "", "raised-%d.json" % pid)
        if not folder or os.getsid(0) != pid or os.path.exists(path):
            return ""
        _record_end(folder, pid)
        return path

    _jax = _load("hook", "jax_rank").watch(_load("mesh", "import_hooks"), record_end)
    atexit.register(_jax.end_process)


def _load(package: str, module: str) -> "Any":
    """Return a module of the toolkit, loaded by its path: the rank's interpreter need not have the toolkit.

    Without importlib.util, whose import takes milliseconds.
    """
    import os
    import sys
    from importlib.machinery import SourceFileLoader

    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    path, name = os.path.join(root, package, module + ".py"), "toolkit_%s_%s" % (package, module)
    loaded = sys.modules[name] = type(sys)(name)
    loaded.__file__ = path
    SourceFileLoader(name, path).exec_module(loaded)
    return loaded


def _start() -> None:
    import atexit

    _leave_path()
    _read_pth()
    atexit.register(_let_gloo_finish)
    _await_jax()  # Its function for the end runs after those of the following.
    _install_excepthook()
    _arm_stacks()
    _open_compat()
    _name_host()
    _name_local_rank()
    _await_frameworks()
    _run_next_sitecustomize()


_start()
