"""Measure what each exporter costs while a job runs: CPU of its process and of what its client starts, and memory.

    scripts/bench exporters [--seconds N] [--rate N] [--columns N] [EXPORTER ...]

A thread writes metrics.jsonl with so many values a second, and each half second the monitor's newest sample, as
`train` and the monitor do. The exporters run as in a job, on this machine alone: W&B offline, Trackio and MLflow
with local stores, OpenTelemetry with a receiver that drops all. CPU is counted after the client's start and first
request, which the last column has. W&B, Trackio and OpenTelemetry need the bed of scripts/beds/trackers.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from harness import bed, parser, print_machine, print_promise, print_table

ROOT = Path(__file__).resolve().parents[2]
NEEDS_BED = ("wandb", "trackio", "otel")
ALL = ("prometheus", "tensorboard", "mlflow", *NEEDS_BED)
WARM_UP_S = 25.0  # Longer than the clients' starts and the first two requests.
# On a busy machine a start takes longer: it is over once LOOK_S cost less than CALM_S of CPU.
LOOK_S, CALM_S, MOST_LOOKS = 10.0, 0.1, 30
MOST_PERCENT = 0.1


def cpu_s(pid: int) -> float:
    """Return the CPU seconds of *pid* and of all its descendants that live."""
    try:
        own_s = process_s(pid)
        # Of each thread: a client's service may be the child of another one than the main thread.
        children = [(task / "children").read_text().split() for task in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return 0.0
    return own_s + sum(cpu_s(int(child)) for of_a_thread in children for child in of_a_thread)


def process_s(pid: int) -> float:
    """Return the CPU seconds of *pid*, with those of its threads that have ended.

    By that process's clock, in nanoseconds (clock_getcpuclockid(3)); /proc has hundredths of a second, and 0.1 % of a
    minute are six of these.
    """
    return time.clock_gettime((~pid << 3) | 2)


def wait_for_start(pid: int) -> None:
    """Wait until the exporter *pid* has started, and its client has, too."""
    time.sleep(WARM_UP_S)
    for _ in range(MOST_LOOKS):
        before_s = cpu_s(pid)
        time.sleep(LOOK_S)
        if cpu_s(pid) - before_s < CALM_S:
            return
    raise SystemExit(f"bench: the exporter did not calm down in {MOST_LOOKS * LOOK_S:.0f} s: is the machine too busy?")


def peak_mib(pid: int) -> float:
    """Return the peak memory of *pid* alone."""
    text = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("VmHWM")) / 1024


class Feed(threading.Thread):
    """Writes metrics and samples until `ends` is set."""

    def __init__(self, folder: Path, rate: float, columns: int) -> None:
        super().__init__(daemon=True)
        self._folder, self._rate, self._columns = folder, rate, columns
        self.ends = threading.Event()

    def run(self) -> None:
        """Write."""
        written = sample = 0
        with (self._folder / "metrics.jsonl").open("a", buffering=1) as file:
            began_s = time.monotonic()
            while not self.ends.wait(0.1):
                while written < (time.monotonic() - began_s) * self._rate:
                    row = {"name": f"metric{written % 10}", "value": written / 7, "time_s": time.time(), "host": "h"}
                    file.write(json.dumps({**row, "rank": 0, "step": written // 10}) + "\n")
                    written += 1
                if (time.monotonic() - began_s) * 2 > sample:
                    sample += 1
                    values = {f"cpu/core{n}/used_percent": (n + sample) % 101 for n in range(self._columns)}
                    part = self._folder / "latest.part"
                    part.write_text(json.dumps({"time_s": time.time(), "values": values}))
                    part.replace(self._folder / "latest.json")


def receiver() -> ThreadingHTTPServer:
    """Return a receiver of OTLP that drops all it gets."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def measure(name: str, words: argparse.Namespace, folder: Path, port: int) -> tuple[float, float, float, float]:
    """Run the exporter *name*; return its CPU in percent of a core, that of its own process alone, its memory in MiB
    and the CPU seconds of its start."""
    exports = {
        "prometheus_port": 0,
        "prometheus_address": "127.0.0.1",
        "tensorboard": str(folder / "events"),
        "mlflow_uri": (folder / "store").as_uri(),
        "wandb_project": "bench",
        "trackio_project": "bench",
        "otlp_endpoint": f"http://127.0.0.1:{port}",
    }
    config = {"exports": exports, "job": "bench", "host": "h", "attempt": 1, "metrics": str(folder / "metrics.jsonl")}
    config |= {"run": "bench", "output": str(folder), "state": str(folder), "latest": str(folder / "latest.json")}
    (folder / "config.json").write_text(json.dumps(config))
    python = bed("trackers") / "bin/python" if name in NEEDS_BED else Path(sys.executable)
    environ = {"WANDB_MODE": "offline", "MLFLOW_ALLOW_FILE_STORE": "true", "PYTHONPATH": str(ROOT)}
    feed = Feed(folder, words.rate, words.columns)
    feed.start()
    argv = (str(python), "-m", "toolkit.monitor.exporters", str(folder / "config.json"), name)
    with subprocess.Popen(argv, cwd=folder, env={**os.environ, **environ}) as process:
        wait_for_start(process.pid)
        start_s, own_start_s = cpu_s(process.pid), process_s(process.pid)
        time.sleep(words.seconds)
        used_s, own_s = cpu_s(process.pid) - start_s, process_s(process.pid) - own_start_s
        memory = peak_mib(process.pid)
        process.send_signal(signal.SIGTERM)
    feed.ends.set()
    feed.join()
    return 100 * used_s / words.seconds, 100 * own_s / words.seconds, memory, start_s


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("exporters", nargs="*", metavar="EXPORTER", help=f"default: {' '.join(ALL)}")
    arguments.add_argument("--seconds", type=float, default=60.0, help="how long to measure each (%(default)s)")
    arguments.add_argument("--rate", type=float, default=10.0, help="values of metrics a second (%(default)s)")
    arguments.add_argument("--columns", type=int, default=100, help="columns of a sample (%(default)s)")
    words = arguments.parse_args()
    unknown = sorted(set(words.exporters) - set(ALL))
    if unknown:
        arguments.error(f"expected exporters among {', '.join(ALL)}, found {', '.join(unknown)}")
    print_machine()
    server = receiver()
    rows, worst = [], 0.0
    for name in words.exporters or ALL:
        with tempfile.TemporaryDirectory() as folder:
            percent, own_percent, memory, start_s = measure(name, words, Path(folder), server.server_port)
        worst = max(worst, percent)
        rows.append((name, f"{percent:.3f} %", f"{own_percent:.3f} %", f"{memory:.0f} MiB", f"{start_s:.2f} s"))
    print_table(("exporter", "CPU, of a core", "of it its own process", "its memory", "CPU of the start"), rows)
    print_promise(worst <= MOST_PERCENT, f"{MOST_PERCENT} % of a core or less at {words.rate:g} metrics a second")


if __name__ == "__main__":
    main()
