"""`toolkit compare JOB OTHER_JOB ...`: savings, throughput, loss, epochs, steps, findings side by side."""

import argparse
import os
import time
from itertools import islice
from pathlib import Path

from msgspec.structs import replace

from toolkit.cli.parser import Parser, one_of
from toolkit.cli.report import WRITERS, asked, price, write
from toolkit.errors import UserError
from toolkit.folders import as_absent, exists
from toolkit.log import Log

PAGE = "compare.html"
EPILOG = """\
All percentages are of the first job. JOB is a job's folder, any /opt/ml or /opt/ml/output, or a name that `toolkit
jobs` shows; several runs of an equal job, with commas between them, count as one side, and tell a change from noise.
Examples: toolkit compare jobs/native jobs/compiled -o -
          toolkit compare before-1,before-2,before-3 after-1,after-2,after-3
"""


def add(parser: Parser) -> None:
    """Declare the arguments."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    parser.add_argument("first", metavar="JOB[,JOB...]", help="the job as it was, or several runs of it")
    parser.add_argument("others", metavar="OTHER_JOB[,JOB...]", nargs="+", help="the job after a change")
    parser.add_argument(
        "--epochs",
        metavar="N[,N...]",
        type=_parse_numbers,
        help="epochs of the jobs, one number for all or one for each, where their files do not say it",
    )
    parser.add_argument(
        "--gpus",
        metavar="N[,N...]",
        type=_parse_numbers,
        help="GPUs of all hosts of the jobs, as --epochs; else the monitor's",
    )
    parser.add_argument("--price", metavar="PER_HOUR", type=price, help="what one host costs in an hour")
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help=f"write to this file, - for standard output (default for html: {PAGE} beside the first job's folder)",
    )
    parser.add_argument(
        "--format",
        type=one_of(WRITERS),
        metavar="NAME",
        help=f"{', '.join(WRITERS)} (default: by the ending of FILE; text for -, else html)",
    )


def run(arguments: argparse.Namespace, log: Log) -> int:  # noqa: ARG001 - every command is called alike
    """Write the page; return 0.

    Raises:
        UserError: a folder holds no job, or a list of numbers does not fit the jobs.
    """
    from toolkit.commands import jobs
    from toolkit.commands.report.compare.measured import choose_labels, measure_job
    from toolkit.commands.report.compare.page import build_page
    from toolkit.commands.simulate.catalogue import folder_of

    now_s = time.time()
    words = (arguments.first, *arguments.others)
    sides = [[folder_of(name, os.environ, Path.cwd()) for name in _split_runs(word)] for word in words]
    form, target = asked(arguments, _choose_default_page(sides[0][0]))
    read = [jobs.read(folder, now_s=now_s) for side in sides for folder in side]
    labels = iter(zip(read, choose_labels(read), strict=True))
    epochs = _spread("--epochs", arguments.epochs, len(words))
    gpus = _spread("--gpus", arguments.gpus, len(words))
    measured = []
    for side, side_epochs, side_gpus in zip(sides, epochs, gpus, strict=True):
        first, *repeats = (
            measure_job(job, label, now_s=now_s, epochs=side_epochs, gpus=side_gpus)
            for job, label in islice(labels, len(side))
        )
        measured.append(replace(first, repeats=tuple(repeats)))
    write(build_page(measured, now_s=now_s, price=arguments.price), form, target)
    return 0


def _split_runs(word: str) -> list[str]:
    """Return the runs of one side; the name of a folder that is there may hold commas itself."""
    return [word] if exists(word, as_absent) else [name for name in word.split(",") if name] or [word]


def _choose_default_page(first: Path) -> Path:
    """Return where the page goes by default: beside the folder of the first job, as jobs/compare.html."""
    path = first.absolute().parent / PAGE
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _parse_numbers(word: str) -> tuple[int, ...]:
    try:
        numbers = tuple(int(number) for number in word.split(","))
    except ValueError:
        numbers = (0,)
    if min(numbers) < 1:
        raise argparse.ArgumentTypeError(f"expected whole numbers of at least 1, as 300 or 300,210, found {word!r}")
    return numbers


def _spread(option: str, numbers: tuple[int, ...] | None, jobs: int) -> tuple[int | None, ...]:
    """Return *numbers* for each of so many *jobs*: one number is for all.

    Raises:
        UserError: there are neither one nor as many numbers as jobs.
    """
    if numbers is None:
        return (None,) * jobs
    if len(numbers) not in (1, jobs):
        raise UserError(f"{option}: expected 1 number or {jobs}, one for each job, found {len(numbers)}")
    return numbers * jobs if len(numbers) == 1 else numbers
