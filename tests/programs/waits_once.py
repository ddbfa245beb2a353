"""Counts its starts in the checkpoint folder. The first start that it counts waits for SIGTERM, later ones end with 0.

waits_once.py [--code CODE]: what the first ends with; without it, SIGTERM kills it.
"""

import os
import pathlib
import signal
import sys

options = dict(zip(sys.argv[1::2], sys.argv[2::2], strict=True))
starts_file = pathlib.Path(os.environ["SM_MODEL_DIR"]).parent / "checkpoints" / os.environ["SM_CURRENT_HOST"]
starts = int(starts_file.read_text()) + 1 if starts_file.exists() else 1
pathlib.Path(os.environ["SM_OUTPUT_DATA_DIR"], f"start-{starts}").write_text("")
starts_file.parent.mkdir(exist_ok=True)
starts_file.write_text(str(starts))
print(f"counted={starts}", flush=True)
if starts == 1:
    if "--code" in options:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(int(options["--code"])))
    while True:
        signal.pause()
