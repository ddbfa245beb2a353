"""The outermost guard of `train`: whatever is raised inside it, the job's end is filed, with a true exit code.

The steps of `train` handle their own errors (train/walk.py, train/ending.py). What gets here was raised before the
first step or between two: by an import, by a standard stream, by a signal handler's installation. It imports nothing
that could fail. First it reports as every other end is reported; where that fails as well (the toolkit's files are
damaged, msgspec is missing, the base cannot be found), it writes the files of the end with `os` alone. This file itself
imports nothing of the toolkit's but inside of the guard: 70 and 75 are EX_SOFTWARE and EX_TEMPFAIL of sysexits.h.
"""

import errno
import os
import sys

TYPE_CHECKING = False  # Not typing's: its import takes 3 ms, in which no signal is handled.
if TYPE_CHECKING:
    from collections.abc import Callable

DEFAULT_BASE = "/opt/ml"
# Words in the names of variables whose values are not filed: masking/names.py, which knows more, cannot be imported.
SECRET = ("KEY", "TOKEN", "SECRET", "PASS", "CREDENTIAL", "AUTH")
LEAST_SECRET = 6
# Letters that stand for themselves in a JSON string.
PLAIN = frozenset(map(chr, range(32, 127))) - {'"', "\\"}
# Limits of the host, and system calls that a sandbox denies.
OF_THE_PLATFORM = (errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM, errno.EPERM, errno.ENOSYS)


def guarded(run: "Callable[[], None]") -> None:
    """Call *run*; if it raises anything but SystemExit, file that and exit with its code."""
    try:
        run()
    except SystemExit:
        raise
    except BaseException as error:  # noqa: BLE001 - nothing is outside of this
        sys.exit(_filed(error))


def _filed(error: BaseException) -> int:
    """Report the job that *error* ended; return its exit code."""
    decided = _decided(error)
    if decided is not None:
        return decided
    try:
        from toolkit.log import Log
        from toolkit.train.ending import report_fault

        return report_fault(dict(os.environ), error, Log())
    except BaseException as another:  # noqa: BLE001 - the reason why the report failed is in the text
        return _write_barely(error, another)


def _decided(error: BaseException) -> int | None:
    """Return the exit code of a job whose end was reported before *error* was raised (a context that closes)."""
    context: BaseException | None = error
    seen_ids = set()
    while context is not None and id(context) not in seen_ids:
        seen_ids.add(id(context))
        if isinstance(context, SystemExit) and isinstance(context.code, int):
            return context.code
        context = context.__context__
    return None


def _write_barely(error: BaseException, another: BaseException) -> int:
    """Write the log, output/failure and output/outcome.json without anything of the toolkit's but names."""
    code, kind = _code_and_kind(error)
    text, trace = _masked(_named(error)), "" if _is_told(error) else _masked(_traceback(error))
    if str(another) != str(error):
        text += _masked(f" (the report failed as well: {_named(another)})")
    failure = f'{kind}:\nExitCode {code}\nErrorMessage "{text}"\n{trace and chr(10) + trace}'
    message = f"error: Reporting training FAILURE\nerror: {failure}"
    _write(2, "".join(f"[toolkit] {line}\n" for line in message.splitlines()))
    output = os.path.join(_base(), "output")
    try:
        os.unlink(os.path.join(output, "success"))
    except OSError:
        pass  # There is none, as a rule.
    for name, content in (("failure", failure), ("outcome.json", _document(code, kind, text, trace))):
        try:
            _make(output)
            fd = os.open(os.path.join(output, name), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK, 0o666)
            _write(fd, content)
            os.close(fd)
        except (OSError, RecursionError) as refusal:
            _write(2, f"[toolkit] error: {output}/{name}: cannot be written ({refusal})\n")
    return code


def _base() -> str:
    """Return the folder below which the job's folders are, as job/base_folders.py finds it."""
    try:
        from toolkit.job.documents.base_variable import BASE_DIR
    except BaseException:  # noqa: BLE001 - the toolkit's files are damaged
        names: tuple[str, ...] = ("TOOLKIT_BASE",)
    else:
        names = (BASE_DIR, "TOOLKIT_BASE")
    return next(filter(None, map(os.environ.get, names)), DEFAULT_BASE)


def _make(folder: str) -> None:
    """Create *folder* and those above it; of any depth, where the toolkit's files are whole."""
    try:
        from toolkit.folders import make
    except BaseException:  # noqa: BLE001 - the toolkit's files are damaged
        os.makedirs(folder, exist_ok=True)
    else:
        make(folder)


def _code_and_kind(error: BaseException) -> tuple[int, str]:
    """Return the exit code and the failure's kind, as train/outcomes.py has them where it can be imported."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in OF_THE_PLATFORM):
        return os.EX_TEMPFAIL, "PlatformError"
    code, kind = getattr(error, "exit_code", None), getattr(error, "prefix", None)
    return (code, kind) if isinstance(code, int) and isinstance(kind, str) else (os.EX_SOFTWARE, "Framework Error")


def _document(code: int, kind: str, text: str, trace: str) -> str:
    """Return the outcome.json of this end: only the keys that its schema requires, and the traceback."""
    cause = {"blame": "toolkit", "kind": kind, "message": text, "traceback": trace}
    entries = [f"    {_quoted(name)}: {_quoted(value)}" for name, value in cause.items()]
    lines = (
        "{",
        '  "schema_version": 1,',
        '  "status": "failed",',
        f'  "exit_code": {code},',
        '  "cause": {',
        ",\n".join([*entries, '    "primary": true']),
        "  }",
        "}",
    )
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """Return *text* as a JSON string."""
    return '"' + "".join(letter if letter in PLAIN else _escaped(letter) for letter in text) + '"'


def _escaped(letter: str) -> str:
    units = letter.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[index]:02x}{units[index + 1]:02x}" for index in range(0, len(units), 2))


def _is_told(error: BaseException) -> bool:
    """True for a ToolkitError, whose text says all."""
    return hasattr(error, "exit_code")


def _named(error: BaseException) -> str:
    return str(error) if _is_told(error) else f"{type(error).__name__}: {error}"


def _traceback(error: BaseException) -> str:
    try:
        import traceback

        return "".join(traceback.format_exception(error))
    except BaseException:  # noqa: BLE001 - its modules may be what cannot be imported
        return ""


def _masked(text: str) -> str:
    for name, value in os.environ.items():
        if len(value) >= LEAST_SECRET and any(word in name.upper() for word in SECRET):
            text = text.replace(value, "******")
    return text


def _write(fd: int, text: str) -> None:
    content = text.encode("utf-8", "backslashreplace")
    try:
        while content:
            content = content[os.write(fd, content) :]
    except OSError:
        pass  # A closed console, a full disk: the exit code still tells.
