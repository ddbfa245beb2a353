"""Raises on the host --host once another host has made the file --meet. The other host waits for SIGTERM.

It then records the signal in a file and ends with 0.
"""

import os
import pathlib
import signal
import sys
import time

options = dict(zip(sys.argv[1::2], sys.argv[2::2], strict=True))
meet = pathlib.Path(options["--meet"])
if os.environ["SM_CURRENT_HOST"] == options["--host"]:
    while not meet.exists():
        time.sleep(0.01)
    raise RuntimeError(f"boom on {options['--host']}")
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
meet.touch()
signal.sigwait({signal.SIGTERM})
pathlib.Path(os.environ["SM_OUTPUT_DATA_DIR"], f"told-{os.environ['SM_CURRENT_HOST']}").touch()
