"""A long job: 2 hosts with 4 ranks each that print hard and are broken at random, and keep checkpoints in a storage
that fails now and then; then everything is counted."""

import argparse
import http.server
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import IO

from tests.ports import free_ports
from tests.soak import checkpoints, stored
from tests.soak.ledger import Ledger, Writer, growth, medians
from tests.soak.outages import TIMEOUT_S, Outages, Report, Span
from tests.storage import servers
from tests.storage.servers import S3, Faulty
from tests.train.base import ROOT, Base
from toolkit.train.supervise.kernel import descendants

RANKS = 4
NAMES = ("algo-1", "algo-2")
WORLD = RANKS * len(NAMES)
# What befalls a rank, and the console's reader. All but the last two end the attempt.
FAULTS = ("raise", "exit", "abort", "kill", "terminate", "rank stopped for 2 s", "console not read for 3 s")
SAMPLE_S = 2.0
LOOK_INTO_STORAGE_S = 30.0
BUCKET, PREFIX = "soak", "run"
STARTS_S, ENDS_S = 120.0, 120.0
# How much more the last third may have than the first. Memory: glibc keeps up to 8 MiB that are free
# (train/supervise/kernel.py), and the first failure imports what it is told with.
MORE = {
    "memory of train, KiB": 12288,
    "memory of the monitor, KiB": 4096,
    "memory of the uploads, KiB": 32768,
    "descriptors": 3,
    "processes": 2,
    "files": 4,
}


class Failing(Faulty):
    """The way to *s3* that fails as *outages* says."""

    def __init__(self, s3: S3, outages: Outages) -> None:
        super().__init__(s3)
        self._outages = outages
        self.fault = lambda method, path: outages.fault(time.monotonic())

    def _answer(self, handler: http.server.BaseHTTPRequestHandler) -> None:
        began_s = time.monotonic()
        super()._answer(handler)
        self._outages.answered(began_s, time.monotonic())


class Host:
    """One `train`, with the threads that read its console, and its way to storage, which fails now and then."""

    def __init__(
        self, folder: Path, name: str, ports: list[int], meet: Path, words: argparse.Namespace, s3: S3, outages: Outages
    ) -> None:
        self.name = name
        self.outages = outages
        self.reports: list[tuple[float, Report]] = []
        self.storage = Failing(s3, outages)
        self.base = Base(folder / name)
        self.ledger = Ledger()
        self.reads = threading.Event()
        self.reads.set()
        self.samples: dict[str, list[int]] = {quantity: [] for quantity in MORE}
        self.temporary = folder / name / "tmp"
        self.temporary.mkdir()
        self.base.hyperparameters(
            {
                "sagemaker_torch_distributed_enabled": "true",
                "sagemaker_instance_type": "local",
                "meet": str(meet),
                "lines-per-s": str(words.lines_per_s),
            }
        )
        self.base.resources(NAMES, name, network_interface_name="lo")
        definitions = [{"Name": quantity, "Regex": quantity + "=([0-9.]+)"} for quantity in ("step", "loss")]
        self.base.document("metric-definition-regex.json", definitions)
        self.base.code.mkdir(parents=True)
        shutil.copy(Path(__file__).with_name("rank.py"), self.base.code / "train.py")
        if words.light:
            module = self.base.code / "torch/distributed/run.py"
            module.parent.mkdir(parents=True)
            for package in (module.parent, module.parents[1]):
                (package / "__init__.py").touch()
            shutil.copy(Path(__file__).with_name("torchrun.py"), module)
        environ = self.base.environ(
            PATH=os.pathsep.join((str(Path(sys.executable).parent), "/usr/bin", "/bin")),
            PYTHONPATH=str(ROOT),
            TMPDIR=str(self.temporary),
            OMP_NUM_THREADS="1",
            MASTER_PORT=str(ports[0]),
            TOOLKIT_LINK_PORT=str(ports[1]),
            TOOLKIT_HOST_ADDRESSES=",".join(f"{name}=127.0.0.1" for name in NAMES),
            TOOLKIT_PROCESSES_PER_HOST=str(RANKS),
            TOOLKIT_RESTARTS="100000",
            TOOLKIT_MONITOR="on",
            TOOLKIT_LOG_FILE_MIB="1000000",
            TOOLKIT_CHECKPOINT_URI=f"s3://{BUCKET}/{PREFIX}",
            TOOLKIT_STORAGE_TIMEOUT_S=f"{TIMEOUT_S:g}",
            **self.storage.environ,
        )
        self.process = subprocess.Popen(
            (sys.executable, "-m", "toolkit.cli.main", "train"),
            env=environ,
            cwd=self.base.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.log = (folder / f"{name}.log").open("wb")
        assert self.process.stdout is not None and self.process.stderr is not None
        streams = (self.process.stdout, self.process.stderr)
        self._lock = threading.Lock()
        self.threads = [threading.Thread(target=self._read, args=(stream,)) for stream in streams]
        for thread in self.threads:
            thread.start()

    def _read(self, stream: IO[bytes]) -> None:
        for line in stream:
            self.reads.wait()
            with self._lock:
                self.ledger.take(line.rstrip(b"\n"))
                if b"soak " not in line:
                    self.log.write(line)
                    self._note_report(line)

    def _note_report(self, line: bytes) -> None:
        if b" storage: " in line and b"; tried again every " in line:
            self.reports.append((time.monotonic(), "fails"))
        elif b" storage: " in line and line.endswith(b": uploads work again\n"):
            self.reports.append((time.monotonic(), "works"))

    def measure(self) -> None:
        """Note how much `train` has and how many processes are below it."""
        pid = self.process.pid
        below = descendants(pid)
        lines = {pid: contents(f"/proc/{pid}/cmdline") for pid in below}
        monitors, uploads = (
            [pid for pid, line in lines.items() if module in line]
            for module in (b"toolkit.monitor", b"toolkit.storage")
        )
        now = {
            "memory of train, KiB": resident_kib(pid),
            "memory of the monitor, KiB": sum(map(resident_kib, monitors)),
            "memory of the uploads, KiB": sum(map(resident_kib, uploads)),
            "descriptors": len(list(Path(f"/proc/{pid}/fd").iterdir())),
            "processes": len(below),
            "files": sum(len(files) for _, _, files in os.walk(self.temporary)),
        }
        for quantity, value in now.items():
            self.samples[quantity].append(value)
        with (self.base.folder / "samples.jsonl").open("a") as file:
            file.write(json.dumps({"at_s": round(time.monotonic(), 1), **now}) + "\n")


def contents(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""


def resident_kib(pid: int) -> int:
    rows = [row.split() for row in contents(f"/proc/{pid}/status").splitlines() if row.startswith(b"VmRSS")]
    return int(rows[0][1]) if rows else 0


class Soak:
    """The job, its faults, and what came of it."""

    def __init__(self, folder: Path, words: argparse.Namespace, s3: S3) -> None:
        self.s3 = s3
        s3.bucket(BUCKET)
        self.meet = folder / "meet"
        self.meet.mkdir()
        self.words = words
        self.random = random.Random(words.seed)
        self.faults: dict[str, int] = dict.fromkeys(FAULTS, 0)
        self.next: list[str] = []
        self.wrong: list[str] = []
        self.restarts: list[Span] = []
        self.seen_in_storage: list[set[int]] = [set() for _ in NAMES]
        self.look_s = time.monotonic() + LOOK_INTO_STORAGE_S
        ports = free_ports(2)
        self.hosts = [
            Host(folder, name, ports, self.meet, words, s3, Outages(self.random, time.monotonic())) for name in NAMES
        ]

    def run(self) -> None:
        """Let the job run for the given time, break it, end it, and judge it."""
        ends_s = time.monotonic() + 60 * self.words.minutes
        attempt = 0
        try:
            while time.monotonic() < ends_s and not self.wrong:
                if not self._started(attempt):
                    break
                if self.restarts:
                    self.restarts[-1] = (self.restarts[-1][0], time.monotonic())
                self._watch(min(ends_s, time.monotonic() + self.random.uniform(*self.words.pause_s)))
                if time.monotonic() < ends_s:
                    attempt += self._break(attempt)
            for host in self.hosts:  # The last upload of the last host fails.
                host.outages.end(time.monotonic(), down=host is self.hosts[-1])
            self.meet.joinpath("end").touch()
            self._wait_for_the_end()
        finally:
            for host in self.hosts:
                host.reads.set()
                if host.process.poll() is None:
                    host.process.kill()
                host.process.wait()
                for thread in host.threads:
                    thread.join()
                host.storage.close()
                host.log.close()
        self._judge(attempt)

    def _started(self, attempt: int) -> bool:
        """Wait until all ranks of *attempt* run."""
        until_s = time.monotonic() + STARTS_S
        while len(list(self.meet.glob(f"count-*-{attempt}"))) < WORLD:
            gone = [host.name for host in self.hosts if host.process.poll() is not None]
            if gone or time.monotonic() > until_s:
                reason = f"{gone[0]} ended" if gone else f"not all ranks ran within {STARTS_S:.0f} s"
                self.wrong.append(f"attempt {attempt}: {reason}")
                return False
            time.sleep(0.1)
        return True

    def _watch(self, until_s: float) -> None:
        while (left_s := until_s - time.monotonic()) > 0:
            time.sleep(min(SAMPLE_S, left_s))
            if left_s > SAMPLE_S and all(host.process.poll() is None for host in self.hosts):
                for host in self.hosts:
                    host.measure()
            if time.monotonic() > self.look_s:
                self.look_s = time.monotonic() + LOOK_INTO_STORAGE_S
                for rank in range(len(self.hosts)):
                    self._look_into_storage(rank)

    def _look_into_storage(self, rank: int) -> set[int]:
        """Return the steps whose checkpoints storage holds whole for the host *rank*. From the first on there is always
        one."""
        steps, fault = stored.read_whole(self.s3, f"{BUCKET}/{PREFIX}/hosts/{rank}")
        if self.seen_in_storage[rank] and not steps:
            fault = fault or "it had a whole checkpoint, and has none"
        if fault:
            self.wrong.append(f"storage of {NAMES[rank]}: {fault}")
        self.seen_in_storage[rank] |= steps
        return steps

    def _break(self, attempt: int) -> int:
        """Do something to the job; return 1 if another attempt has to follow."""
        if not self.next:  # Each once, in another order each time.
            self.next = self.random.sample(FAULTS, len(FAULTS))
        how, rank = self.next.pop(), self.random.randrange(WORLD)
        self.faults[how] += 1
        if how.startswith("console"):
            host = self.random.choice(self.hosts)
            host.reads.clear()
            time.sleep(3)
            host.reads.set()
            return 0
        if how.startswith("rank"):
            # The rank that has the file of its counts open.
            path = self.meet / f"count-{rank}-{attempt}"
            pids = [pid for host in self.hosts for pid in descendants(host.process.pid) if maps(pid, path)]
            for number in (signal.SIGSTOP, signal.SIGCONT):
                for pid in pids:
                    os.kill(pid, number)
                time.sleep(2 if number == signal.SIGSTOP else 0)
            return 0
        self.restarts.append((time.monotonic(), float("inf")))
        new = self.meet / "fault.new"
        new.write_text(how)
        new.rename(self.meet / f"fault-{rank}")
        return 1

    def _wait_for_the_end(self) -> None:
        until_s = time.monotonic() + ENDS_S
        for host in self.hosts:
            try:
                status = host.process.wait(max(until_s - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                self.wrong.append(f"{host.name} did not end within {ENDS_S:.0f} s")
                continue
            if status != 0:
                self.wrong.append(f"{host.name} ended with {status}")

    def _judge(self, attempts: int) -> None:
        written, metrics = self._written()
        rows = [("lines written by the ranks", f"{sum(written.values()):,}")]
        files = Ledger()
        for number, host in enumerate(self.hosts):
            host_counts = {who: count for who, count in written.items() if who[0] // RANKS == number}
            host.ledger.compare(host_counts)
            self.wrong += [f"console of {host.name}: {fault}" for fault in host.ledger.faults]
            for path in sorted(host.base.output.glob("data/logs/*.log")):
                with path.open("rb") as file:
                    for line in file:
                        files.take(line.rstrip(b"\n"))
        files.compare(written)
        self.wrong += [f"files: {fault}" for fault in files.faults]
        console = sum(host.ledger.lines for host in self.hosts)
        rows.append(("lines on the consoles", f"{console:,}"))
        rows.append(("lines in the ranks' files", f"{files.lines:,} ({files.bytes / 2**20:,.0f} MiB)"))
        samples = sum(
            json.loads(line)["name"] == "loss"
            for host in self.hosts
            for line in contents(str(host.base.output / "metrics.jsonl")).splitlines()
        )
        rows.append(("lines with a metric, and samples of it", f"{metrics:,}, {samples:,}"))
        if not metrics <= samples <= metrics + len(written):
            self.wrong.append(f"metrics: {metrics} lines, {samples} samples")
        rows.append(("faults", ", ".join(f"{how}: {count}" for how, count in self.faults.items() if count) or "none"))
        rows.append(("restarts of all ranks", str(attempts)))
        rows += [row for rank in range(len(self.hosts)) for row in self._judge_storage(rank)]
        for host in self.hosts:
            for quantity, values in host.samples.items():
                rows.append(
                    (f"{host.name}: {quantity}, in each sixth of the time", self._grown(host.name, quantity, values))
                )
        for quantity, value in rows:
            print(f"| {quantity} | {value} |")

    def _judge_storage(self, rank: int) -> list[tuple[str, str]]:
        host = self.hosts[rank]
        steps = self._look_into_storage(rank)
        newest = max(checkpoints.whole_on_disk(host.base.root / "checkpoints"), default=-1)
        notes = json.loads(contents(str(host.base.output / "outcome.json")) or b"{}").get("notes", [])
        failed = [note for note in notes if note.startswith("the last upload failed: ")]
        is_down = host is self.hosts[-1]
        if not is_down and newest not in steps:
            self.wrong.append(
                f"storage of {host.name}: expected the newest checkpoint, {newest}, found {sorted(steps)}"
            )
        if len(failed) != is_down:
            self.wrong.append(f"{host.name}: expected {int(is_down)} notes of a failed last upload, found {notes}")
        self.wrong += [f"{host.name}: {fault}" for fault in host.outages.faults(host.reports, self.restarts)]
        met = [outage for outage in host.outages.all if outage.failed_s]
        fails = sum(report == "fails" for _, report in host.reports)
        count = len(self.seen_in_storage[rank])
        return [
            (
                f"{host.name}: outages of storage, requests that failed",
                f"{len(met)}, {sum(len(outage.failed_s) for outage in met)}",
            ),
            (
                f"{host.name}: failures of uploads reported, successes after one",
                f"{fails}, {len(host.reports) - fails}",
            ),
            (f"{host.name}: last upload", "failed, reported, status 0" if failed else "done"),
            (
                f"{host.name}: whole checkpoints seen in storage, the newest",
                f"{count:,}, {max(steps, default=-1)} of {newest}",
            ),
        ]

    def _grown(self, name: str, quantity: str, values: list[int]) -> str:
        if len(values) < 6:
            return "too few samples"
        first, last = growth(values)
        if last > first + MORE[quantity]:
            self.wrong.append(f"{name}: {quantity} grew from {first} to {last}")
        return f"{', '.join(f'{pid:,}' for pid in medians(values, 6))} ({len(values)} samples)"

    def _written(self) -> tuple[dict[Writer, int], int]:
        """Return the ranks' own counts of their lines, and of all lines with a metric."""
        written: dict[Writer, int] = {}
        metrics = 0
        for path in self.meet.glob("count-*"):
            _, rank, attempt = path.name.split("-")
            out, err, with_metric = struct.unpack("=3Q", path.read_bytes())
            written[int(rank), int(attempt), "out"], written[int(rank), int(attempt), "err"] = out, err
            metrics += with_metric
        return written, metrics


def maps(pid: int, path: Path) -> bool:
    return str(path).encode() in contents(f"/proc/{pid}/maps")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/soak", description="Run a job for long, break it at random, and count its lines."
    )
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--lines-per-s", type=float, default=400.0, help="of each of the 8 ranks, in bursts (400)")
    parser.add_argument("--light", action="store_true", help="a stand-in for torchrun, which starts at once")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32), help="of the faults")
    parser.add_argument(
        "--pause-s", type=float, nargs=2, default=(5.0, 20.0), help="between two faults, from and to (5 20)"
    )
    parser.add_argument("--keep", type=Path, help="a folder that does not exist: keep logs and files there")
    words = parser.parse_args()
    folder = words.keep or Path(tempfile.mkdtemp(prefix="soak-"))
    folder.mkdir(parents=True, exist_ok=words.keep is None)
    commit = subprocess.run(
        ["git", "log", "-1", "--format=%h"], cwd=ROOT, capture_output=True, text=True
    ).stdout.strip()
    print(f"| soak of {words.minutes:g} minutes, seed {words.seed}, commit {commit} | |\n|---|---|")
    if not (servers.BED / ".ready").exists():
        raise SystemExit("soak: needs the test bed .beds/storage (scripts/beds/storage)")
    try:
        with servers.moto(folder) as s3:
            soak = Soak(folder, words, s3)
            soak.run()
        for text in soak.wrong:
            print(f"soak: {text}", file=sys.stderr)
        if soak.wrong and words.keep is None:
            for host in soak.hosts:
                sys.stderr.write(contents(host.log.name).decode(errors="replace")[-4000:])
        print(f"| result | {'nothing lost, nothing grew' if not soak.wrong else f'{len(soak.wrong)} faults'} |")
    finally:
        if words.keep is None:
            shutil.rmtree(folder, ignore_errors=True)
    return 1 if soak.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
