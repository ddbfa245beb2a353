"""Counts --steps further, keeping the count in the checkpoint folder.

Without --steps it counts three, says "ready" and waits for SIGTERM, on which it ends with 0.
"""

import os
import pathlib
import signal
import sys

options = dict(zip(sys.argv[1::2], sys.argv[2::2], strict=True))
count_file = pathlib.Path(os.environ["SM_MODEL_DIR"]).parent / "checkpoints" / "count"
count = int(count_file.read_text()) if count_file.exists() else 0
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
print(f"begin={count}", flush=True)
for _ in range(int(options.get("--steps", "3"))):
    count += 1
    count_file.parent.mkdir(exist_ok=True)
    count_file.write_text(str(count))
    print(f"step={count} loss={1 / count}", flush=True)
if "--steps" not in options:
    print("ready", flush=True)
    signal.sigwait({signal.SIGTERM})
pathlib.Path(os.environ["SM_MODEL_DIR"], "model.txt").write_text(str(count))
