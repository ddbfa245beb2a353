"""What is done to torch_xla once it is there: made true across ranks, or watched; given the names it once had."""

import os
from types import ModuleType

ALONE = (
    "torch_xla takes this rank to be alone ({what}), but it is rank {rank} of {size}: on CPU torch_xla knows nothing "
    "of other processes, every rank would train by itself and the results would be wrong. Start the job with the "
    "distribution pytorchxla, which makes torch_xla's collectives true across processes (docs/pytorchxla.md)."
)


class AloneError(RuntimeError):
    """Each rank of several believes that it is the only one."""


def not_loading(error: BaseException) -> ImportError:
    """Return what to raise where torch_xla is there and does not load."""
    from importlib import metadata

    def version(name: str) -> str:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            return "(not installed)"

    ours, torchs = version("torch_xla"), version("torch")
    wanted = ".".join(ours.split(".")[:2])
    return ImportError(
        f"torch_xla {ours} does not load with torch {torchs}: {error}. "
        f"Both must be of one release: install torch {wanted}.*, or the torch_xla that was made for torch {torchs}."
    )


def complete(module: ModuleType) -> None:
    """Make *module*, torch_xla as just imported, right for this rank. A module of that name that is not XLA's stays.

    In a rank of the pytorchxla launcher (TOOLKIT_XLA): the old names, the script's function run in place, and on CPU
    with several ranks the collectives. In any other rank of several on CPU: the guard.
    """
    if not hasattr(module, "_XLAC"):
        return
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    on_cpu = os.environ.get("PJRT_DEVICE", "CPU").split("_")[0] == "CPU"
    if os.environ.get("TOOLKIT_XLA") != "on":
        if on_cpu and size > 1:
            guard(rank, size)
        return
    from toolkit.xla import names

    if on_cpu and size > 1:
        from toolkit.xla import place
        from toolkit.xla.live import install

        install.install(place.of(os.environ))
    if "RANK" in os.environ:
        names.run_in_place(module, rank)
    if os.environ.get("TOOLKIT_COMPAT", "").strip() != "off":
        names.add()


def guard(rank: int, size: int) -> None:
    """Let what torch_xla is asked for its ranks with raise AloneError where it believes in one of several."""
    import functools
    import sys
    from collections.abc import Callable

    runtime = sys.modules["torch_xla.runtime"]

    def watched(name: str, native: Callable[[], int], told: int) -> Callable[[], int]:
        @functools.wraps(native)
        def asked() -> int:
            found = native()
            if found != told and runtime.process_count() == 1:
                raise AloneError(ALONE.format(what=f"torch_xla.runtime.{name}() is {found}", rank=rank, size=size))
            return found

        return asked

    runtime.world_size = watched("world_size", runtime.world_size, size)  # type: ignore[attr-defined]
    runtime.global_ordinal = watched("global_ordinal", runtime.global_ordinal, rank)  # type: ignore[attr-defined]
