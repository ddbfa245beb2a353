"""The folders of a job below its base, the same on every platform."""

import os
import zlib
from collections.abc import Mapping
from pathlib import Path

from toolkit.errors import ContractError
from toolkit.job.job import Folders

BASE = "/opt/ml"


def absolute(path: Path | str, name: str) -> Path:
    """Return *path*, the value of *name*, as an absolute path.

    Raises:
        ContractError: it is relative, and the current folder was removed.
    """
    try:
        return Path(path).absolute()
    except OSError as error:
        raise ContractError(
            f"expected an absolute path, found {str(path)!r}, which is relative to the current folder, and that was"
            f" removed or cannot be read ({error.strerror})",
            where=name,
            hint="Name the whole path, or start train in a folder that exists.",
        ) from None


def current() -> Path:
    """Return the current folder.

    Raises:
        ContractError: it was removed, or cannot be read.
    """
    try:
        return Path.cwd()
    except OSError as error:
        reason = f"found that it was removed or cannot be read ({error.strerror})"
        hint = "Start train in a folder that exists."
        raise ContractError(f"expected a current folder, {reason}", where="train", hint=hint) from None


def below(base: str, environ: Mapping[str, str], *, name: str = "TOOLKIT_BASE") -> Folders:
    """Return the folders below *base* ("": /opt/ml), which the variable *name* names. They need not exist.

    `scratch` is under TMPDIR or /tmp, a different one for each base and user.

    Raises:
        ContractError: a path is relative, and the current folder was removed.
    """
    top = absolute(base or BASE, name)
    temporary = absolute(environ.get("TMPDIR") or "/tmp", "TMPDIR")
    return Folders(
        base=top,
        config=top / "input/config",
        code=top / "code",
        data=top / "input/data",
        model=top / "model",
        output=top / "output",
        output_data=top / "output/data",
        intermediate=top / "output/intermediate",
        checkpoints=top / "checkpoints",
        scratch=temporary / f"toolkit-{os.getuid()}-{zlib.crc32(os.fsencode(top)):08x}",
    )
