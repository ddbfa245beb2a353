"""Advice for known causes: the one place that reads an error for what to do about it.

Advice belongs to the cause: to the exception that ended the process, then to those that it was raised from; the last
lines of a process count only where there is no exception. To add a row, add a line in tests/train/verdict, too.
"""

import re
from collections.abc import Callable, Sequence

from toolkit.patterns import lazy

SHM = "/dev/shm is too small: give the container more (docker run --shm-size=8g)."
SMALLER = "Lower the batch size or the sequence length, or use more GPUs."
FLAGS = "A switch of the script (store_true) was given a value: TOOLKIT_ARGUMENT_STYLE=flags passes it alone."
ONE_EACH = "Two ranks on one GPU: each rank must set its device from LOCAL_RANK."
PORT = "Another process has the port: set MASTER_PORT to a free one."
INSTALL = "Install it in the image, or name it in requirements.txt beside the script."
DISK = "A disk is full: keep fewer checkpoints, or give the job a larger volume."
FILES = "Raise the limit (docker run --ulimit nofile=65536), or use fewer workers."
OUT_OF_MEMORY = "Give the container more memory, or use less: smaller batches, fewer loader workers."
FULL = "no space left on device"
# The state of the machine lasts even where the script handles the error: torch.save fails with an error of its own
# while it handles that of a full disk.
LASTING = (SHM, DISK, FILES)

# Errors of a program about its own values. The machine, a library or a driver raises others, so that words of theirs in
# one of these are data: a line of a log that is compared, a file's name.
OF_PROGRAMS = frozenset(
    (
        "ArithmeticError",
        "AssertionError",
        "AttributeError",
        "IndexError",
        "KeyError",
        "LookupError",
        "NameError",
        "NotImplementedError",
        "OverflowError",
        "StopIteration",
        "SyntaxError",
        "TypeError",
        "UnboundLocalError",
        "UnicodeDecodeError",
        "UnicodeEncodeError",
        "ValueError",
        "ZeroDivisionError",
        "IndentationError",
        "TabError",
        "FileExistsError",
        "FileNotFoundError",
        "IsADirectoryError",
        "NotADirectoryError",
        "JSONDecodeError",
        "ValidationError",
    )
)
Rows = tuple[tuple[tuple[str, ...], str], ...]
NOT_ASKED_FOR = "The job's distribution must ask for it: see `toolkit docs modelparallel` and `toolkit docs smddp`."
# (words, in lower case, all of which the error or the last lines hold; what to do)
OF_CODE: Rows = (
    (("must be torch.dtype, not str",), "Give the type itself, not its name as text: dtype=torch.bfloat16."),
    (
        ("invalid character", "u+201"),
        "The code has typographic quotes, as copied from a web page: replace them by straight ones.",
    ),
    # torch before 1.8 says it by an AssertionError.
    (("found no nvidia driver",), "The container sees no GPU: start it with --gpus all, on a machine that has one."),
)
ADVICE: Rows = (
    *OF_CODE,
    (("cuda out of memory",), SMALLER),
    (("torch.outofmemoryerror",), SMALLER),
    (("bus error", "dataloader"), SHM),
    (("insufficient shared memory",), SHM),
    (("unable to allocate shared memory",), SHM),
    # torch's tensors between processes, files of shared_memory and mmap, and the locks of multiprocessing.
    ((FULL, "shared memory"), SHM),
    ((FULL, "</torch_"), SHM),
    ((FULL, "/dev/shm/"), SHM),
    ((FULL, "semlock"), SHM),
    ((FULL, "multiprocessing/synchronize.py"), SHM),
    ((FULL, "multiprocessing/shared_memory.py"), SHM),
    (("sigbus",), "Often a full /dev/shm (docker run --shm-size=8g), or a file cut short while it was mapped."),
    ((FULL,), DISK),
    (
        ("environment is externally managed",),
        "The operating system's Python refuses pip (PEP 668): run train with a virtual environment's Python.",
    ),
    (("no module named 'smdistributed'",), NOT_ASKED_FOR),
    (("no module named 'smdistributed.modelparallel'",), NOT_ASKED_FOR),
    (("no module named 'smdistributed.dataparallel'",), NOT_ASKED_FOR),
    (  # Below those, the library is there.
        ("no module named 'smdistributed.",),
        "The library is there, and has no such module: `toolkit docs modelparallel` and `toolkit docs smddp` list its "
        "names.",
    ),
    (("no module named",), INSTALL),
    (("cannot find command 'git'",), "Install git in the image, or name an archive of the repository (a .tar.gz)."),
    (
        ("could not read username",),
        "The repository is not public, or does not exist: give a token, or a wheel instead.",
    ),
    (
        ("permission denied (publickey",),
        "The container has no key for ssh: use https with a token, or a wheel instead.",
    ),
    (("host key verification failed",), "The container does not know the host: use https, or add it to known_hosts."),
    (
        ("does not appear to be a python project",),
        "The folder needs a pyproject.toml or setup.py; for code beside the script no line is needed.",
    ),
    (
        ("conflicting dependencies",),
        "Loosen one of the versions; `pip install --dry-run -r requirements.txt` shows it in seconds.",
    ),
    (
        ("a hash of requirements.txt differs",),
        "The package changed after its hash was taken: look whether that is meant, and lock it again.",
    ),
    (("ncclunhandledcudaerror",), "NCCL_DEBUG=INFO shows the CUDA call; a broken GPU or a wrong driver are usual."),
    (("ncclsystemerror",), "NCCL_DEBUG=INFO shows the call; look at NCCL_SOCKET_IFNAME, ulimits and /dev/shm."),
    (("ncclinvalidusage",), ONE_EACH),
    (("duplicate gpu detected",), ONE_EACH),
    (("nvrm: xid",), "The GPU reported a fault (Xid): exclude this machine and try again."),
    (("uncorrectable ecc error",), "The GPU's memory is broken: exclude this machine and try again."),
    (
        ("invalid device ordinal",),
        "A rank has no GPU of its own: start as many ranks on a host as it has GPUs, each on device LOCAL_RANK.",
    ),
    (
        ("device-side assert",),
        "Often a label or token beyond the model's classes or vocabulary; CUDA_LAUNCH_BLOCKING=1 shows the line.",
    ),
    (("no kernel image is available",), "The framework's build does not know this GPU: install one made for it."),
    (("cuda driver version is insufficient",), "The machine's driver is older than the image's CUDA."),
    (
        ("segmentation fault", "horovod/common/basics.py"),
        "Horovod crashes like this if it was built without MPI. Rebuild it with MPI (docs/horovod.md).",
    ),
    (
        ("coordinationservice/registertask", "deadline"),
        "Call jax.distributed.initialize() without arguments; every host must reach rank 0, the coordinator.",
    ),
    (("address already in use",), PORT),
    (("eaddrinuse",), PORT),
    (("too many open files",), FILES),
    *((("unrecognized arguments: " + value,), FLAGS) for value in ("true", "false")),
    *((("got unexpected extra argument", f"({value}"), FLAGS) for value in ("true", "false")),
    (("error: argument", "value: '["), "TOOLKIT_ARGUMENT_STYLE=flags passes a list as several arguments (nargs)."),
    (
        ("error: argument", "value: ''"),
        "A null hyperparameter is an empty argument; TOOLKIT_ARGUMENT_STYLE=flags has none.",
    ),
    (
        ("unrecognized arguments: --mp_parameters",),
        "Add the argument --mp_parameters to the script's parser; TOOLKIT_ARGUMENT_STYLE=none passes no arguments.",
    ),
    (
        ("unrecognized arguments",),
        "The job has a hyperparameter that the script does not know; TOOLKIT_ARGUMENT_STYLE=none passes none.",
    ),
)

# The type of the exception that a text begins with: "torch.OutOfMemoryError: ...", "KeyError: ..."
_TYPE = lazy(r"(?:\w+\.)*(?P<name>[A-Za-z_]\w*)(?::\s|:?$)", re.MULTILINE)
# "No module named 'pkg'", "No module named pkg" (python -m)
_NO_MODULE = lazy(r"[Nn]o module named (?P<quote>['\"]?)(?P<name>[\w.]+)(?P=quote)")


def find_advice(error: str, *, caused_by: Sequence[str] = (), handled: Sequence[str] = ()) -> str:
    """Return advice for *error*, what ended a process; "" for none.

    *caused_by*: the errors from which it was raised, the nearest first. *handled*: those that were being handled when
    it was raised. They need not be its reason, so only what lasts counts of them.
    """
    text = next(filter(None, map(_find_row, (error, *caused_by))), "")
    return text or next((text for error in handled if (text := _find_row(error)) in LASTING), "")


def _find_row(error: str) -> str:
    low = error.lower()
    rows = OF_CODE if _is_of_program(error) else ADVICE
    return next((text for words, text in rows if all(word in low for word in words)), "")


def _is_of_program(error: str) -> bool:
    kind = _TYPE.match(error)
    return kind is not None and kind["name"] in OF_PROGRAMS


def advise_own_module(cause: str, path_of: Callable[[str], str]) -> str:
    """Return advice for the module that is missing by *cause*, if it is the user's own; "" if it is to be installed.

    *path_of* returns the path of a package of the user's own code, "" if there is none of that name.
    """
    missing = None if _is_of_program(cause) else _NO_MODULE.search(cause)
    name, _, inner = missing["name"].partition(".") if missing is not None else ("", "", "")
    path = path_of(name) if name else ""
    if not path:
        return ""
    if inner:
        return f"{name} is the job's own {path}, which has no {inner}: was it uploaded, or is another {name} meant?"
    folder = path.rpartition("/")[0]
    return f"{name} is the job's own {path}: put {folder} on Python's path (PYTHONPATH), or install the project."
