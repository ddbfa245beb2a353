"""NVIDIA GPUs, as `nvidia-smi` lists them: asked once, and only where it is installed."""

from toolkit.probe.ask import WITHIN_S, ask, found


def count(path: str, *, within_s: float = WITHIN_S) -> tuple[int, tuple[str, ...]]:
    """Return (GPUs, notes): 0 with a note if nvidia-smi is on *path* but fails or hangs, 0 without if it is not there.

    MIG instances, listed indented below their GPU, do not count: as sagemaker-training 5.1.4.
    """
    program = found("nvidia-smi", path)
    if program is None:
        return 0, ()
    answer = ask((program, "--list-gpus"), within_s=within_s)
    if answer.trouble:
        return 0, (f"nvidia-smi --list-gpus {answer.trouble}; going on as if there were no GPU",)
    return sum(line.startswith("GPU ") for line in answer.text.splitlines()), ()
