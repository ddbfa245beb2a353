"""Code that the benches share: options, environments, processes that take turns, times, peaks of memory, tables."""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BEDS = Path(os.environ.get("TOOLKIT_BEDS") or ROOT / ".beds")
sys.path.insert(0, str(ROOT))  # For toolkit and tests, of this checkout.


def parser(description: str | None) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)


def names(text: str) -> list[str]:
    """Return the names of an option: A,B,... ('' for none)."""
    return [name for name in text.split(",") if name]


def numbers(text: str) -> list[int]:
    return [int(name) for name in names(text)]


def bed(name: str) -> Path:
    """Return the folder of a test bed; end the bench where it has not been made."""
    if not (BEDS / name / ".ready").exists():
        raise SystemExit(f"bench: expected the test bed {BEDS / name}, found none; run its script in scripts/beds")
    return BEDS / name


def environment(name: str, *installs: Sequence[object]) -> Path | None:
    """Return the bin folder of .cache/*name*, made once with `pip install` of each of *installs*; None if it fails."""
    folder = ROOT / ".cache" / name
    python = folder / "bin/python"
    if not (folder / ".ready").exists():
        print(f"bench: making {folder}", file=sys.stderr)
        pip = [python, "-m", "pip", "--disable-pip-version-check", "-qq", "install"]
        steps = [[sys.executable, "-m", "venv", "--clear", folder], *([*pip, *install] for install in installs)]
        if any(subprocess.run([str(word) for word in step]).returncode for step in steps):
            return None
        (folder / ".ready").touch()
    return python.parent


def print_machine(*more: str) -> None:
    """Print the machine, its load, the interpreter, and what *more* the figures depend on."""
    cores, load = len(os.sched_getaffinity(0)), f"load {os.getloadavg()[0]:.1f}"
    system = f"Linux {platform.release()}, Python {platform.python_version()}"
    print(", ".join((f"{platform.machine()}, {cores} cores, {load}, {system}", *more)), flush=True)


def print_table(head: Sequence[object], rows: Iterable[Sequence[object]]) -> None:
    """Print a Markdown table; each row as soon as it is known."""
    print(f"\n| {' | '.join(map(str, head))} |\n|{'---|' * len(head)}", flush=True)
    for row in rows:
        print(f"| {' | '.join(map(str, row))} |", flush=True)


def print_promise(holds: bool, promise: str) -> bool:
    print(f"\n{'Holds' if holds else 'DOES NOT HOLD'}: {promise}", flush=True)
    return holds


def peak_mib(pid: int | str = "self") -> float:
    """Return the peak of a process's resident memory, MiB; 0 if it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM")), 0)


def timed(act: Callable[[], object]) -> tuple[float, float]:
    """Return the wall and the CPU seconds of *act*."""
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    act()
    return time.perf_counter() - wall_s, time.process_time() - cpu_s


def in_turns(ways: dict[str, Callable[[], Any]], rounds: int, *, warm_up: int = 0) -> dict[str, list[Any]]:
    """Return what each of *ways* returned in each round, every other one backwards, after *warm_up* rounds."""
    results: dict[str, list[Any]] = {name: [] for name in ways}
    for number in range(warm_up + rounds):
        for name in list(ways)[:: -1 if number % 2 else 1]:
            result = ways[name]()
            if number >= warm_up:
                results[name].append(result)
    return results


class Worker:
    """A process that answers each order on its stdin with a line of JSON, and uses no core while it waits."""

    def __init__(self, command: Sequence[object], environ: dict[str, str] | None = None) -> None:
        words = [str(word) for word in command]
        self._process = subprocess.Popen(
            words, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def tell(self, order: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(order + "\n")

    def read(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def ask(self, order: str) -> Any:
        self.tell(order)
        return self.read()

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        if self._process.wait() != 0:
            raise SystemExit(f"bench: {self._process.args} ended with {self._process.returncode}")


def answer_orders(answers: dict[str, Callable[[int], Any]]) -> None:
    """Be a Worker's process: answer each order, NAME or NAME COUNT, by the function of that name."""
    for line in sys.stdin:
        name, *count = line.split()
        print(json.dumps(answers[name](int(count[0]) if count else 0)), flush=True)
