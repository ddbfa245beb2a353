"""Writes the names in every channel, its own arguments and its checkpoint folder into output/data."""

import json
import os
import pathlib
import sys

facts = {"argv": sys.argv[1:], "group": os.environ["SM_CURRENT_INSTANCE_GROUP"]}
for name in json.loads(os.environ["SM_CHANNELS"]):
    folder = pathlib.Path(os.environ[f"SM_CHANNEL_{name.upper()}"])
    facts[name] = sorted(path.name for path in folder.iterdir())
path = pathlib.Path(os.environ["SM_OUTPUT_DATA_DIR"], f"seen-{os.environ['SM_CURRENT_HOST']}.json")
path.write_text(json.dumps(facts))
