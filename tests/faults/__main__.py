"""scripts/faults: the whole matrix, as a table (docs/lab/faults.md says how to read it)."""

import argparse
import contextlib
import os
import platform
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.faults import hosts, matrix, rows
from tests.faults.launchers import ALL, Launcher
from tests.faults.table import BY_NAME, FAULTS, Fault

# A row whose rounds had to share each core with so many other processes is a row of a busy machine.
BUSY = 1.0


def main(words: Sequence[str]) -> int:
    """Run what *words* ask for; 0 if everything was right."""
    args = parser().parse_args(words)
    faults = [BY_NAME[name] for name in args.only] if args.only else FAULTS
    wrong = 0
    print(*rows.HEAD, sep="\n")
    with hosts.busy(os.cpu_count() or 1) if args.busy else contextlib.nullcontext():
        for fault in faults:
            for launcher in args.launchers:
                for count in args.hosts if launcher in fault.launchers else ():
                    if reason := matrix.why_not(fault, launcher):
                        print(f"| {fault.name} | {launcher} | {count} | not tried: {reason} | | | | |", flush=True)
                        continue
                    row = several(fault, launcher, count, args.rounds, args.logs, busy=args.busy)
                    print(rows.format_row(row), flush=True)
                    wrong += row.rounds - row.right
                    if args.write:
                        rows.write([row], machine())
    return 1 if wrong else 0


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/faults", description="Every fault, on real hosts.")
    parser.add_argument("--rounds", type=int, default=1, help="how often each fault is tried (default 1)")
    parser.add_argument("--hosts", type=_numbers, default=[2, 4], metavar="N,...", help="default 2,4")
    parser.add_argument("--launchers", type=_launchers, default=list(ALL), metavar="NAME,...", help="default all")
    parser.add_argument(
        "--only", action="append", choices=sorted(BY_NAME), metavar="NAME", help="this fault (again...)"
    )
    parser.add_argument("--busy", action="store_true", help="with every core kept busy by something else")
    parser.add_argument("--logs", type=Path, metavar="FOLDER", help="where logs of rounds that went wrong are kept")
    parser.add_argument(
        "--write", action="store_true", help="put the rows into docs/lab/faults.csv, and their summary beside it"
    )
    return parser


def several(
    fault: Fault, launcher: Launcher, count: int, rounds: int, logs: Path | None, *, busy: bool = False
) -> rows.Row:
    """Try a fault *rounds* times. The row is marked busy if *busy*, or if other work kept the machine busy."""
    results = []
    for number in range(1, rounds + 1):
        result = matrix.run(fault, launcher, count)
        results.append(result)
        for mistake in result.wrong:
            print(f"{fault.name}, {launcher}, {count} hosts, round {number}: {mistake}", file=sys.stderr, flush=True)
        if result.wrong and logs is not None:
            logs.mkdir(parents=True, exist_ok=True)
            (logs / f"{fault.name}-{launcher}-{count}-{number}.log").write_text(result.logs)
    detect_s = [result.detect_s for result in results]
    end_s = [result.end_s for result in results]
    return rows.Row(
        fault=fault.name,
        launcher=launcher,
        busy=busy or max(result.crowd for result in results) >= BUSY,
        hosts=count,
        rounds=rounds,
        right=sum(not result.wrong for result in results),
        exit_codes=" or ".join(sorted({_codes(result.codes) for result in results})),
        named_after_s=_median(detect_s),
        named_after_worst_s=rows.worst(detect_s),
        ended_after_s=_median(end_s),
        ended_after_worst_s=rows.worst(end_s),
        left_over=sum(result.left for result in results),
    )


def machine() -> str:
    return f"{matrix.machine()}, Python {platform.python_version()}; {time.strftime('%Y-%m-%d')}"


def _codes(codes: tuple[int | None, ...]) -> str:
    return " ".join("-" if code is None else str(code) for code in codes)


def _median(seconds: Sequence[float | None]) -> float | None:
    measured = [value for value in seconds if value is not None]
    return statistics.median(measured) if measured else None


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def _launchers(text: str) -> list[str]:
    names = text.split(",")
    if not set(names) <= set(ALL):
        raise argparse.ArgumentTypeError(f"expected some of {', '.join(ALL)}, found {text!r}")
    return names


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
