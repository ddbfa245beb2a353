"""Lists the channel "train" and tries to write a file of its own there."""

import os
import pathlib

folder = pathlib.Path(os.environ["SM_CHANNEL_TRAIN"])
assert {"a", "b", "c"} <= {path.name for path in folder.iterdir()}
try:
    (folder / f"from-{os.environ['SM_CURRENT_HOST']}").write_text("")
except OSError as error:
    print(f"refused: {error.strerror}", flush=True)
