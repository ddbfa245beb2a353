"""scripts/sdk-faults: the same faults in jobs of ModelTrainer under the SDK's own drivers and under Toolkit.

Each job was sent by ModelTrainer and is started as PID 1 of a namespace (replay.py). What is compared: the exit code of
the container, whether the failure text names what went wrong, and when the script heard a stop.
"""

import argparse
import importlib
import os
import platform
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from tests.conformance.table import write
from tests.sdk import replay
from tests.sdk.faults import FAULTS, Fault, script
from tests.sdk.replay import Container
from toolkit.records import Record

PAGE = replay.ROOT / "docs/lab/sagemaker-sdk.md"
KILLED_AFTER_S = 15.0
DEADLINE_S = 90.0
COST_ROUNDS = 5
PIP = "import sys\nprint('ERROR: No matching distribution found for no-such-package-of-ours==1')\nsys.exit(1)\n"


class Seen(Record, frozen=True, kw_only=True):
    """The end of a job."""

    code: int
    failure: str
    heard_s: tuple[float, ...] = ()
    """Seconds from the signal to each rank that heard it."""
    cpu_s: float = 0.0
    wall_s: float = 0.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/sdk-faults")
    parser.add_argument("--only", default="", help="faults whose name has this text")
    parser.add_argument("--write", action="store_true", help="write the table into docs/lab/sagemaker-sdk.md")
    words = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sdk-faults-") as scratch:
        text = compare(Path(scratch), [name for name in FAULTS if words.only in name])
    print(text)
    if words.write and not words.only:
        write(PAGE, text)
    return 0


def compare(folder: Path, names: list[str]) -> str:
    """Return the tables of the faults *names*."""
    package = folder / "distribution/toolkit_sagemaker"
    shutil.copytree(replay.DISTRIBUTION / "toolkit_sagemaker", package, ignore=shutil.ignore_patterns("packs"))
    carried = [sys.executable, str(replay.ROOT / "scripts/carried-packs"), "--cache", str(replay.BED / "msgspec")]
    subprocess.run([*carried, "--into", str(package / "driver/packs")], check=True, stdout=subprocess.DEVNULL)
    image = replay.make_image(folder / "image")
    next(image.parent.glob("lib/python*/site-packages/pip/__main__.py")).write_text(PIP)
    kinds = [(name, ranks) for name in names for ranks in (1, 2) if ranks == 1 or FAULTS[name].many_ranks]
    jobs = {
        f"{name}-{ranks}-{how}": job(FAULTS[name], ranks, how) for name, ranks in kinds for how in ("driver", "toolkit")
    }
    replay.send(folder / "sent", jobs, package.parent)
    rows = []
    for name, ranks in kinds:
        driver, ours = (
            run(folder / "sent" / f"{name}-{ranks}-{how}", image, FAULTS[name]) for how in ("driver", "toolkit")
        )
        print(f"{name}, {ranks}: {driver} | {ours}", file=sys.stderr, flush=True)
        rows.append((FAULTS[name], ranks, driver, ours))
    return "\n".join([*table(rows), "", *costs(folder, image)])


def job(fault: Fault, ranks: int, how: str) -> dict[str, Any]:
    several = {
        "toolkit": {"distribution": "torch_distributed", "processes_per_host": 2},
        "driver": {"process_count_per_node": 2},
    }
    return {
        "how": how if how == "toolkit" else {1: "basic", 2: "torchrun"}[ranks],
        "distributed": several[how] if ranks > 1 else {},
        "files": {"train.py": script(fault), **fault.files},
        "source": fault.source,
        "trainer": {"environment": fault.environ, **fault.trainer},
    }


def run(sent: Path, image: Path, fault: Fault) -> Seen:
    """Run the job in *sent*, and stop it if the fault is a stop."""
    container = Container(sent, image)
    began_s = time.monotonic()
    killed_s = heard_from = 0.0
    with replay.started(container) as running:
        if fault.is_stopped:
            running.until(b"ready", deadline_s=DEADLINE_S)
            heard_from = time.time()
            os.kill(replay.first_process(running), signal.SIGTERM)
            killed_s = time.monotonic() + KILLED_AFTER_S
        try:
            done = running.end(deadline_s=KILLED_AFTER_S if fault.is_stopped else DEADLINE_S)
            code, failure = done.status, done.failure or ""
        except AssertionError:
            code, failure = 137 if killed_s else 999, "(still running)" if not killed_s else ""
    heard = [float(path.read_text()) - heard_from for path in sorted((container.root / "model").glob("heard-*"))]
    return Seen(code=code, failure=failure, heard_s=tuple(heard), wall_s=time.monotonic() - began_s)


def table(rows: list[tuple[Fault, int, Seen, Seen]]) -> list[str]:
    names = [
        sum(is_right(fault, ending) for fault, _, ending, _ in rows),
        sum(is_right(fault, ending) for fault, _, _, ending in rows),
    ]
    day, load = datetime.now(timezone.utc).date(), os.getloadavg()[0]
    lines = [
        f"{len(rows)} jobs of each: the SDK's drivers right in {names[0]}, `Toolkit` in {names[1]}. Right: the exit"
        " code is the script's, and the failure text names what went wrong.",
        f"Run on {day} with Python {platform.python_version()} and Linux {platform.release()}, {platform.machine()}, at"
        f" a load of {load:.0f} on {os.cpu_count()} cores.",
        "",
        "| the script, or its last rank | ranks | right code | SDK's driver: code | failure text | `Toolkit`: code"
        " | failure text |",
        "|---|---|---|---|---|---|---|",
    ]
    for fault, ranks, driver, ours in rows:
        cells = [f"{ending.code}{mark(fault, ending)}" for ending in (driver, ours)]
        texts = [headline(ending) for ending in (driver, ours)]
        lines.append(f"| {fault.what} | {ranks} | {fault.code} | {cells[0]} | {texts[0]} | {cells[1]} | {texts[1]} |")
    return lines


def is_right(fault: Fault, ending: Seen) -> bool:
    return ending.code == fault.code and (not fault.expected or fault.expected in ending.failure)


def mark(fault: Fault, ending: Seen) -> str:
    return "" if ending.code == fault.code else " (wrong)"


def headline(ending: Seen) -> str:
    """Return what a person sees of the failure: its message, or the last line of a traceback."""
    if ending.heard_s:
        return "heard after " + " and ".join(f"{value * 1000:.0f} ms" for value in ending.heard_s)
    found = re.search(r'ErrorMessage "(.*?)"\n', ending.failure, re.S)
    text = found[1] if found else next(iter(ending.failure.strip().splitlines()[-1:]), "none")
    text = re.sub(r"/\S*/bin/", "", text)  # Where the image lies.
    text = " ".join(text.replace("|", "\\|").replace("`", "'").split())
    return text if len(text) <= 110 else text[:107] + "..."


def costs(folder: Path, image: Path) -> list[str]:
    """Return the table of what a trivial job costs in CPU, from the start of PID 1 to the end of the container."""
    jobs = {"driver": ("basic", ""), "toolkit": ("toolkit", ""), "installed": ("toolkit", "installed")}
    files = {"train.py": "print('trained')\n"}
    package = folder / "distribution"
    replay.send(folder / "cost", {name: {"how": how, "files": files} for name, (how, _) in jobs.items()}, package)
    installed = replay.make_image(folder / "with-toolkit")
    site = next(installed.parent.glob("lib/python*/site-packages"))
    for name in ("toolkit", "msgspec"):
        shutil.copytree(Path(importlib.import_module(name).__file__ or "").parent, site / name)
    subprocess.run([installed / "python3", "-m", "compileall", "-q", site / "toolkit"], check=True)
    seconds: dict[str, list[float]] = {name: [] for name in (*jobs, "again")}
    for _ in range(COST_ROUNDS):
        for name, (_, kind) in jobs.items():
            container = Container(folder / "cost" / name, installed if kind else image)
            shutil.rmtree(container.folder / "tmp")
            (container.folder / "tmp").mkdir()
            seconds[name].append(spent(container))
            if name == "toolkit":
                seconds["again"].append(spent(container))
    words = {
        "driver": "the SDK's basic driver",
        "installed": "`Toolkit`, an image that has the same toolkit",
        "toolkit": "`Toolkit`, an image that has never heard of it",
        "again": "the same, a second start of the container",
    }
    return [
        f"CPU seconds of a job whose script prints a word, median of {COST_ROUNDS}, in turns:",
        "",
        "| | CPU, s |",
        "|---|---|",
        *(f"| {words[name]} | {statistics.median(seconds[name]):.2f} |" for name in words),
        "",
    ]


def spent(container: Container) -> float:
    """Return the CPU time of *container* and all its processes."""
    process = subprocess.Popen(
        container.command,
        env=container.environ(),
        cwd=container.folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{container.folder}: ended with {process.returncode}")
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    sys.exit(main())
