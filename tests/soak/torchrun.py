"""Stands in for torchrun (scripts/soak --light): starts this host's ranks, and ends them all when one fails.

torchrun takes seconds of CPU time for each start. With this, a job restarts four times a minute on a busy machine.
"""

import argparse
import os
import signal
import subprocess
import sys
import time


def main() -> int:
    parser = argparse.ArgumentParser()
    for option in ("--nnodes", "--nproc_per_node", "--master_port", "--node_rank"):
        parser.add_argument(option, type=int)
    parser.add_argument("--master_addr")
    parser.add_argument("script", nargs=argparse.REMAINDER)
    words = parser.parse_args()
    script = words.script[1:] if words.script[:1] == ["--"] else words.script
    ranks: list[subprocess.Popen[bytes]] = []

    def stop(*_: object) -> None:
        for rank in ranks:
            rank.terminate()

    signal.signal(signal.SIGTERM, stop)
    for local_rank in range(words.nproc_per_node):
        rank, world = words.node_rank * words.nproc_per_node + local_rank, words.nnodes * words.nproc_per_node
        variables = {"RANK": str(rank), "LOCAL_RANK": str(local_rank), "WORLD_SIZE": str(world)}
        ranks.append(subprocess.Popen((os.environ["PYTHON_EXEC"], "-u", *script), env={**os.environ, **variables}))
    failed = 0
    while any(rank.poll() is None for rank in ranks):
        failed = failed or next((rank.returncode for rank in ranks if rank.returncode), 0)
        if failed:
            stop()
        time.sleep(0.1)
    return 1 if failed or any(rank.returncode for rank in ranks) else 0


if __name__ == "__main__":
    sys.exit(main())
