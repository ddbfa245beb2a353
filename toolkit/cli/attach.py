"""`toolkit attach NAME`: follow the output of a job of `toolkit run` to its end."""

import argparse
import os
import time
from pathlib import Path

from toolkit import exit_codes
from toolkit.cli.parser import Parser, whole
from toolkit.log import Log

EPILOG = """\
Ctrl-C ends attach alone; the job goes on (toolkit stop NAME ends it).
Exit code: the job's; 75 if its runner was killed; 130 after Ctrl-C; 78 if there is no such job.
"""


def add(parser: Parser) -> None:
    """Declare the arguments."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    parser.add_argument("job", metavar="NAME", help="the job's name (toolkit jobs) or its folder")
    parser.add_argument("--tail", metavar="N", type=whole, help="begin with the last N lines (default: all)")


def run(arguments: argparse.Namespace, log: Log) -> int:
    """Follow the job; return its exit code."""
    from toolkit.commands.simulate import catalogue, facts, follow

    folder = catalogue.find(arguments.job, os.environ, Path.cwd())
    try:
        follow.follow(folder, _write, tail=arguments.tail)
    except KeyboardInterrupt:
        log.info(f"detached; the job goes on. To stop it: toolkit stop {arguments.job}")
        return exit_codes.INTERRUPTED
    job = facts.read_facts(folder, time.time(), metrics=False)
    if job.exit_code is not None:
        log.info(f"{job.name}: {job.status}, exit code {job.exit_code}")
        return job.exit_code
    log.error(f"{job.name}: {job.failure_reason}")
    return exit_codes.TEMPORARY_FAILURE


def _write(block: bytes) -> None:
    left = memoryview(block)
    while left:
        left = left[os.write(1, left) :]
