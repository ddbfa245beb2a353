"""The folders of a job below its base, the same on every platform."""

import os
import zlib
from collections.abc import Mapping
from pathlib import Path

from toolkit.job.job import Folders

BASE = "/opt/ml"


def below(base: str, environ: Mapping[str, str]) -> Folders:
    """Return the folders below *base* ("": /opt/ml). They need not exist.

    `scratch` is under TMPDIR or /tmp, a different one for each base and user.
    """
    top = Path(base or BASE).absolute()
    temporary = Path(environ.get("TMPDIR") or "/tmp").absolute()
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
