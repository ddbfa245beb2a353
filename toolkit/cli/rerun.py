"""`toolkit rerun JOB`: run a job again, as it was, and say first what cannot be the same."""

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from toolkit import exit_codes
from toolkit.cli.parser import Parser
from toolkit.errors import UserError
from toolkit.log import Log

EPILOG = """\
JOB is a name that `toolkit jobs` shows, a job's folder, or any /opt/ml with code/ and output/. The new job has the
source, the channels and the options of the first one. Exit code: as that of toolkit run; 78: nothing was started.
Examples: toolkit rerun digits-2026-01-31 --dry-run
          toolkit rerun jobs/digits --venv
"""
NAME_CHARACTERS = 57  # "-rerun" follows, and a name has 63 at most.


def add(parser: Parser) -> None:
    """Declare the arguments."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    parser.add_argument("job", metavar="JOB", help="the job to run again")
    parser.add_argument("--name", metavar="NAME", help="the new job's name (default: the first one's and -rerun)")
    parser.add_argument("--job-dir", metavar="DIR", help="where everything about the new job goes (default: jobs/NAME)")
    parser.add_argument("--replace", action="store_true", help="remove the results of an earlier job of that name")
    parser.add_argument(
        "--venv",
        action="store_true",
        help="install the packages that ran, in their versions, into JOBDIR-venv, and run the job there",
    )
    parser.add_argument("--dry-run", action="store_true", help="start nothing: say what cannot be the same")
    parser.add_argument("--plain", action="store_true", help="lines alone: no table that is redrawn, no colours")
    for option, shape, meaning in (
        ("--channel", "NAME=PATH[:MODE]", "the files of a channel, where they are elsewhere now"),
        ("--hyperparameter", "NAME=VALUE", "a hyperparameter with another value, or one that was a secret"),
        ("--env", "NAME=VALUE", "a variable with another value, or one that was a secret"),
    ):
        parser.add_argument(option, metavar=shape, help=meaning, action="append")


def run(arguments: argparse.Namespace, log: Log) -> int:
    """Run the job again; return its exit code.

    Raises:
        UserError: there is no such job, it has no manifest, or something that it needs is gone.
    """
    from toolkit.commands.rerun import read_earlier
    from toolkit.commands.simulate.catalogue import folder_of

    job = read_earlier(folder_of(arguments.job, os.environ, Path.cwd()))
    for note in job.notes:
        log.warning(note)
    if job.data.status == "running":
        raise UserError("expected a job that has ended, found one that runs", where=str(job.data.folder))
    with tempfile.TemporaryDirectory(prefix="toolkit-rerun-") as source:
        return _run(job, Path(source), arguments, log)


def _run(job: Any, source: Path, arguments: argparse.Namespace, log: Log) -> int:
    from toolkit.cli.run import stamp
    from toolkit.commands.rerun import find_missing_secrets, list_differences, make_options
    from toolkit.commands.simulate.check import check
    from toolkit.commands.simulate.display import choose_display
    from toolkit.commands.simulate.report import summary
    from toolkit.commands.simulate.run import simulate
    from toolkit.job.file.job_file import check_job_file
    from toolkit.job.file.options import Origin, from_arguments, joined

    environ = dict(os.environ)
    name = arguments.name or f"{job.name[:NAME_CHARACTERS].rstrip('-')}-rerun"
    words = ("channel", "hyperparameter", "env", "job_dir")
    names = {word.replace("_", "-"): f"toolkit rerun: --{word.replace('_', '-')}" for word in (*words, "name")}
    origin = Origin(where=str(job.data.folder), names=names)
    by_user = from_arguments({word: getattr(arguments, word) for word in words}, Path.cwd(), origin)
    new = make_options(job, source, by_user)
    options = {**joined(new.options, by_user), "name": name, "replace": arguments.replace}
    if new.options.get("channel"):
        options["channel"] = new.options["channel"]
    if missing := find_missing_secrets(job, options):
        raise UserError(
            f"expected a value for {', '.join(missing)}, found that it was a secret, which no file keeps",
            where=str(job.data.folder),
            hint="Give each with --hyperparameter NAME=VALUE.",
        )
    job_file = check_job_file(options, origin, folder=Path.cwd(), stamp=stamp(time.time_ns()))
    check(job_file)
    if arguments.venv and not arguments.dry_run:
        from toolkit.commands.rerun_venv import make_venv

        interpreter, troubles = make_venv(job.manifest, job_file, log)
        job_file = replace(job_file, run=replace(job_file.run, interpreter=interpreter))
    else:
        troubles = []
    differences, notes = list_differences(job, job_file, new.channels, environ, Log())
    if arguments.venv and arguments.dry_run:
        differences = [one for one in differences if one.part != "package"]
        notes.append("--venv will install the packages in the versions that ran")
    _say(job.name, [*map(str, differences), *troubles], [*new.notes, *notes])
    if arguments.dry_run:
        return 0
    look = "plain" if arguments.plain else "auto"
    try:
        report = simulate(
            job_file,
            environ,
            log,
            lambda: choose_display(log, several=len(job_file.hosts) > 1, environ=environ, look=look),  # type: ignore[arg-type]
        )
    except KeyboardInterrupt:
        log.error("interrupted while the job was being prepared, or its results collected")
        return exit_codes.INTERRUPTED
    folder = job_file.run.job_dir
    print(f"\n{summary(report, folder)}\n  to compare: toolkit compare {job.data.folder} {folder}", flush=True)
    return exit_codes.INTERNAL_FAULT if report.exit_code is None else report.exit_code


def _say(name: str, differences: list[str], notes: list[str]) -> None:
    """Print what cannot be the same, before anything starts."""
    if differences:
        print(f"Not the same as in {name}:")
    else:
        print(f"Source, channels, packages, variables and machine are those of {name}.")
    for text in differences:
        print(f"  {text}")
    for note in notes:
        print(f"  note: {note}")
    print(flush=True)
