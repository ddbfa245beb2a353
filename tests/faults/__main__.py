"""scripts/faults: the whole matrix, as a table (docs/faults.md says how to read it)."""

import argparse
import contextlib
import os
import platform
import re
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.faults import hosts, matrix
from tests.faults.launchers import ALL, Launcher
from tests.faults.table import BY_NAME, FAULTS, Fault

# A row whose rounds had to share each core with so many other processes is a row of a busy machine.
BUSY = 1.0
PAGE = Path(__file__).parents[2] / "docs/faults.md"
TABLE = re.compile(r"(?<=<!-- table -->\n).*(?=<!-- /table -->)", re.S)
HEAD = (
    "| fault | launcher | hosts | right | exit codes | named after | all ended after | left over |",
    "|---|---|---|---|---|---|---|---|",
)


def main(words: Sequence[str]) -> int:
    """Run what *words* ask for; 0 if everything was right."""
    given = parser().parse_args(words)
    faults = [BY_NAME[name] for name in given.only] if given.only else FAULTS
    wrong = 0
    print(*HEAD, sep="\n")
    with hosts.busy(os.cpu_count() or 1) if given.busy else contextlib.nullcontext():
        for fault in faults:
            for launcher in given.launchers:
                for count in given.hosts if launcher in fault.launchers else ():
                    row, misses = several(fault, launcher, count, given.rounds, given.logs, busy=given.busy)
                    print(row, flush=True)
                    wrong += misses
                    if given.write:
                        write([row])
    return 1 if wrong else 0


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/faults", description="Every fault, on real hosts; docs/faults.md.")
    parser.add_argument("--rounds", type=int, default=1, help="how often each fault is tried (default 1)")
    parser.add_argument("--hosts", type=_numbers, default=[2, 4], metavar="N,...", help="default 2,4")
    parser.add_argument("--launchers", type=_launchers, default=list(ALL), metavar="NAME,...", help="default all")
    parser.add_argument(
        "--only", action="append", choices=sorted(BY_NAME), metavar="NAME", help="this fault (again...)"
    )
    parser.add_argument("--busy", action="store_true", help="with every core kept busy by something else")
    parser.add_argument("--logs", type=Path, metavar="FOLDER", help="where logs of rounds that went wrong are kept")
    parser.add_argument("--write", action="store_true", help=f"put the rows into the table of docs/{PAGE.name}")
    return parser


def several(
    fault: Fault, launcher: Launcher, count: int, rounds: int, logs: Path | None, *, busy: bool = False
) -> tuple[str, int]:
    """Return the row of *rounds* rounds of a fault, and how many of them went wrong. *busy* is only said; so is it
    where others kept the machine busy."""
    if reason := matrix.why_not(fault, launcher):
        return f"| {fault.name} | {launcher} | {count} | not tried: {reason} | | | | |", 0
    results = []
    for number in range(1, rounds + 1):
        result = matrix.run(fault, launcher, count)
        results.append(result)
        for each in result.wrong:
            print(f"{fault.name}, {launcher}, {count} hosts, round {number}: {each}", file=sys.stderr, flush=True)
        if result.wrong and logs is not None:
            logs.mkdir(parents=True, exist_ok=True)
            (logs / f"{fault.name}-{launcher}-{count}-{number}.log").write_text(result.logs)
    right = sum(not result.wrong for result in results)
    codes = " or ".join(sorted({_codes(result.codes) for result in results}))
    named = _spread([result.detect_s for result in results])
    ended = _spread([result.end_s for result in results])
    left = sum(result.left for result in results)
    busy = busy or max(result.crowd for result in results) >= BUSY
    start = f"| {fault.name} | {launcher}{', busy' * busy} | {count} "
    row = f"{start}| {right} of {rounds} | {codes} | {named} | {ended} | {left or 'none'} |"
    return row, rounds - right


def write(rows: Sequence[str]) -> None:
    """Put *rows* into the page's table, in place of older ones of the same fault, launcher and hosts."""
    text = PAGE.read_text()
    old = TABLE.search(text)
    kept = {_key(row): row for row in (old[0] if old else "").splitlines() if row.startswith("| ") and row != HEAD[0]}
    kept.update((_key(row), row) for row in rows)
    names = list(BY_NAME)
    order = sorted((key for key in kept if key[0] in names), key=lambda key: (names.index(key[0]), *key[1:]))
    made = f"On {matrix.machine()}, Python {platform.python_version()}; {time.strftime('%Y-%m-%d')}."
    body = "\n".join((made, "", *HEAD, *(kept[key] for key in order), ""))
    PAGE.write_text(TABLE.sub(lambda _: body, text))


def _key(row: str) -> tuple[str, ...]:
    """Return what a row is of: fault, launcher, hosts."""
    return tuple(cell.strip() for cell in row.split("|")[1:4])


def _codes(codes: tuple[int | None, ...]) -> str:
    return " ".join("-" if code is None else str(code) for code in codes)


def _spread(seconds: Sequence[float | None]) -> str:
    """Return "0.05 s (worst 0.07)", "" where there is nothing to measure."""
    known = [each for each in seconds if each is not None]
    if not known:
        return ""
    worst = f" (worst {max(known):.2f})" if len(known) > 1 else ""
    return f"{statistics.median(known):.2f} s{worst}"


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def _launchers(text: str) -> list[str]:
    names = text.split(",")
    if not set(names) <= set(ALL):
        raise argparse.ArgumentTypeError(f"expected some of {', '.join(ALL)}, found {text!r}")
    return names


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
