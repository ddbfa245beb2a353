"""Completes torch_xla after its import: makes it work across ranks or guards it, and adds its former names."""

import os
from types import ModuleType

from toolkit.rank.frameworks import torch_xla as private

ALONE = (
    "torch_xla takes this rank to be alone ({call}), but it is rank {rank} of {size}: on CPU torch_xla knows nothing "
    "of other processes, every rank would train by itself and the results would be wrong. Start the job with the "
    "distribution pytorchxla, which makes torch_xla's collectives true across processes (docs/pytorchxla.md)."
)


class AloneError(RuntimeError):
    """torch_xla assumes in each of several ranks that it is the only one."""


def loading_error(error: BaseException) -> ImportError:
    """Return the exception to raise if torch_xla is installed but cannot be loaded."""
    from importlib import metadata

    def version(name: str) -> str:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            return "(not installed)"

    own_version, torch_version = version("torch_xla"), version("torch")
    release = ".".join(own_version.split(".")[:2])
    return ImportError(
        f"torch_xla {own_version} does not load with torch {torch_version}: {error}. "
        f"Both must be of one release: install torch {release}.*, or the torch_xla that was made for torch "
        f"{torch_version}."
    )


def complete(module: ModuleType) -> None:
    """Complete *module*, the torch_xla just imported, for this rank. Another module of that name is not changed.

    In a rank of the pytorchxla launcher (TOOLKIT_XLA): add the old names, run the script's function in this process,
    and on CPU with several ranks replace the collectives. In other ranks, if there are several on CPU: add the guard.
    """
    if not private.is_torch_xla(module):
        return
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    on_cpu = os.environ.get("PJRT_DEVICE", "CPU").split("_")[0] == "CPU"
    if os.environ.get("TOOLKIT_XLA") != "on":
        if on_cpu and size > 1:
            guard(rank, size)
        return
    from toolkit.rank.xla import names

    if on_cpu and size > 1:
        from toolkit.rank.xla import position
        from toolkit.rank.xla.live import install

        private.check_names(module)
        install.install(position.read_position(os.environ))
    if "RANK" in os.environ:
        names.run_in_place(module, rank)
    if os.environ.get("TOOLKIT_COMPAT", "").strip() != "off":
        names.add()


def guard(rank: int, size: int) -> None:
    """Make torch_xla.runtime's world_size and global_ordinal raise AloneError if torch_xla ignores the other ranks."""
    import functools
    import sys
    from collections.abc import Callable

    runtime = sys.modules["torch_xla.runtime"]

    def guarded(name: str, native: Callable[[], int], expected: int) -> Callable[[], int]:
        @functools.wraps(native)
        def checked() -> int:
            value = native()
            if value != expected and runtime.process_count() == 1:
                raise AloneError(ALONE.format(call=f"torch_xla.runtime.{name}() is {value}", rank=rank, size=size))
            return value

        return checked

    runtime.world_size = guarded("world_size", runtime.world_size, size)  # type: ignore[attr-defined]
    runtime.global_ordinal = guarded("global_ordinal", runtime.global_ordinal, rank)  # type: ignore[attr-defined]
