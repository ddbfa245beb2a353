"""Steps with all ranks of JAX; --ends-on RANK ends in the way that --ends says after three steps."""

import argparse
import os
import sys
import threading
import time

import jax
import numpy as np
from jax.experimental.multihost_utils import process_allgather

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=6)
parser.add_argument("--ends-on", type=int, default=-1)
parser.add_argument("--ends", default="")
parser.add_argument("--explicit", default="no")
options = parser.parse_args()

if options.ends == "before" and int(os.environ["RANK"]) == options.ends_on:
    sys.exit(0)  # As a rank without data of its own may, or one whose process forks and leaves.
if options.ends == "alone":
    time.sleep(3 * (int(os.environ["RANK"]) != options.ends_on))
    print(f"rank {os.environ['RANK']} is done", flush=True)
    sys.exit(0)

if options.explicit == "yes":
    jax.distributed.initialize(
        os.environ["JAX_COORDINATOR_ADDRESS"],
        num_processes=int(os.environ["JAX_NUM_PROCESSES"]),
        process_id=int(os.environ["WORLD_SIZE"]) - 1 - int(os.environ["RANK"]),  # Its own order.
        coordinator_bind_address=os.environ["JAX_COORDINATOR_ADDRESS"],
    )
else:
    jax.distributed.initialize()
print(f"rank {os.environ['RANK']} is process {jax.process_index()} of {jax.process_count()}", flush=True)


def raises_in_a_thread() -> None:
    raise ValueError("only a thread's")


for step in range(options.steps):
    time.sleep(0.05)
    if step == 3 and jax.process_index() == options.ends_on:
        if options.ends == "exits":
            sys.exit(0)
        if options.ends == "survives":
            threading.Thread(target=raises_in_a_thread).start()
            try:
                sys.exit(7)
            except SystemExit:
                print("went on", flush=True)
        if options.ends == "own-hook":
            sys.excepthook = lambda _kind, value, _trace: print(f"ours: {value}", flush=True)
            raise ValueError("boom")
        if options.ends == "leaves":
            try:
                raise ValueError("boom")
            finally:
                jax.distributed.shutdown()
    process_allgather(np.ones(2))
print(f"rank {os.environ['RANK']} is done", flush=True)
