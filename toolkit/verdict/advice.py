"""Data: advice for known causes. To add one, add a row and a line in tests/verdict."""

SHM = "/dev/shm is too small: give the container more (docker run --shm-size=8g)."
SMALLER = "Lower the batch size or the sequence length, or use more GPUs."
FLAGS = "A switch of the script (store_true) was given a value: TOOLKIT_ARGUMENT_STYLE=flags passes it alone."
ONE_EACH = "Two ranks on one GPU: each rank must set its device from LOCAL_RANK."

# (words, in lower case, all of which the error or the last lines hold; what to do)
ADVICE: tuple[tuple[tuple[str, ...], str], ...] = (
    (("cuda out of memory",), SMALLER),
    (("torch.outofmemoryerror",), SMALLER),
    (("bus error", "dataloader"), SHM),
    (("insufficient shared memory",), SHM),
    (("sigbus",), "Often a full /dev/shm (docker run --shm-size=8g), or a file cut short while it was mapped."),
    (("no space left on device",), "A disk is full: keep fewer checkpoints, or give the job a larger volume."),
    (
        ("environment is externally managed",),
        "The operating system's Python refuses pip (PEP 668): run train with a virtual environment's Python.",
    ),
    (
        ("no module named 'smdistributed",),
        "The job's distribution must ask for it: see `toolkit docs modelparallel` and `toolkit docs smddp`.",
    ),
    (("no module named",), "Install it in the image, or name it in requirements.txt beside the script."),
    (("ncclunhandledcudaerror",), "NCCL_DEBUG=INFO shows the CUDA call; a broken GPU or a wrong driver are usual."),
    (("ncclsystemerror",), "NCCL_DEBUG=INFO shows the call; look at NCCL_SOCKET_IFNAME, ulimits and /dev/shm."),
    (("ncclinvalidusage",), ONE_EACH),
    (("duplicate gpu detected",), ONE_EACH),
    (("nvrm: xid",), "The GPU reported a fault (Xid): exclude this machine and try again."),
    (("uncorrectable ecc error",), "The GPU's memory is broken: exclude this machine and try again."),
    (("no kernel image is available",), "The framework's build does not know this GPU: install one made for it."),
    (("cuda driver version is insufficient",), "The machine's driver is older than the image's CUDA."),
    (("found no nvidia driver",), "The container sees no GPU: start it with --gpus all, on a machine that has one."),
    (
        ("segmentation fault", "horovod/common/basics.py"),
        "Horovod falls so where it was built without MPI: docs/horovod.md says how it is built with it.",
    ),
    (
        ("coordinationservice/registertask", "deadline"),
        "Call jax.distributed.initialize() without arguments; every host must reach rank 0, the coordinator.",
    ),
    (("must be torch.dtype, not str",), "Give the type itself, not its name as text: dtype=torch.bfloat16."),
    (
        ("invalid character", "u+201"),
        "The code has typographic quotes, as copied from a web page: replace them by straight ones.",
    ),
    (("address already in use",), "Another process has the port: set MASTER_PORT to a free one."),
    (("too many open files",), "Raise the limit (docker run --ulimit nofile=65536), or use fewer workers."),
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


def advice(said: str) -> str:
    """Return advice for *said*, an error and the last lines of a process; "" for none."""
    low = said.lower()
    return next((text for words, text in ADVICE if all(word in low for word in words)), "")
