"""Reads --epochs of the Pipe channel `train` and writes a summary of each into output/data."""

import os
import pathlib
import sys

folder = pathlib.Path(os.environ["SM_CHANNEL_TRAIN"])
epochs = [pathlib.Path(f"{folder}_{number}").read_bytes() for number in range(int(sys.argv[2]))]
name = f"epochs-{os.environ['SM_CURRENT_HOST']}"
pathlib.Path(os.environ["SM_OUTPUT_DATA_DIR"], name).write_bytes(b"|".join(epochs))
