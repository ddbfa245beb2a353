"""The process that asks NVML: `python -m toolkit.monitor.gpu.child INTERVAL_S`. It may hang, and nobody waits for it.

It writes JSON lines to stdout: first {"names": [...], "metrics": [[...], ...]}, or {"reason": "..."} if nothing can be
measured, then a list of values for each sample. It ends when stdin does, that is with its monitor.
"""

import json
import select
import sys
import time
from typing import Any


def main(interval_s: float) -> None:
    """Write the values of the GPUs every *interval_s* until stdin ends."""
    try:
        import pynvml
    except ImportError:
        _write({"reason": "the package nvidia-ml-py is not installed"})
        return
    try:
        pynvml.nvmlInit()
        _measure(pynvml, interval_s)
    except pynvml.NVMLError as error:
        _write({"reason": f"NVML: {error}"})


def _measure(pynvml: Any, interval_s: float) -> None:
    from toolkit.monitor.gpu.nvml import NvmlGpus

    gpus = NvmlGpus(pynvml, time.monotonic())
    _write({"names": gpus.names(), "metrics": gpus.metrics()})
    due_s = time.monotonic()
    while True:
        _write(gpus.values(time.monotonic()))
        due_s = max(due_s + interval_s, time.monotonic())
        if select.select([sys.stdin], [], [], due_s - time.monotonic())[0]:
            return


def _write(line: object) -> None:
    sys.stdout.write(f"{json.dumps(line)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    try:
        main(float(sys.argv[1]))
    except (BrokenPipeError, KeyboardInterrupt):
        pass  # The monitor has ended.
