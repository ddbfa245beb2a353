"""Raises on the host given as --host; elsewhere waits to be told to stop, writes that down and ends with 0."""

import os
import pathlib
import signal
import sys

wanted = dict(zip(sys.argv[1::2], sys.argv[2::2], strict=True))
if os.environ["SM_CURRENT_HOST"] == wanted["--host"]:
    raise RuntimeError(f"boom on {wanted['--host']}")
signal.sigwait({signal.SIGTERM})
pathlib.Path(os.environ["SM_OUTPUT_DATA_DIR"], f"told-{os.environ['SM_CURRENT_HOST']}").touch()
