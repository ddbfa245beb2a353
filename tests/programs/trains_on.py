"""Trains ten steps on from the model of the channel "model", if there is one, and keeps the new one."""

import json
import os
import pathlib
import tarfile

channel = os.environ.get("SM_CHANNEL_MODEL")
weights = {"steps": 0}
if channel:
    with tarfile.open(pathlib.Path(channel, "model.tar.gz")) as archive:
        archive.extractall("old", filter="data")
    weights = json.loads(pathlib.Path("old/weights.json").read_text())
print(f"steps={weights['steps']} of the old model", flush=True)
weights["steps"] += 10
pathlib.Path(os.environ["SM_MODEL_DIR"], "weights.json").write_text(json.dumps(weights))
