"""`toolkit stop NAME`: stop a job of `toolkit run` as the platform would, and wait for its end."""

import argparse
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit import exit_codes
from toolkit.cli.parser import Parser
from toolkit.errors import UserError
from toolkit.log import Log

if TYPE_CHECKING:
    from toolkit.commands.simulate.runner import JobRunner

AGAIN_S = 1.5  # A second request within 1 s counts as the first (train/supervise/signals.py: SAME_REQUEST_S).


def add(parser: Parser) -> None:
    """Declare the arguments."""
    parser.add_argument("job", metavar="NAME", help="the job's name (toolkit jobs) or its folder")
    parser.add_argument("--now", action="store_true", help="kill it: no grace of 120 s after SIGTERM")


def run(arguments: argparse.Namespace, log: Log) -> int:
    """Stop the job and wait for its end; return the exit code."""
    from toolkit.commands.simulate import catalogue, facts, follow, runner

    folder = catalogue.find(arguments.job, os.environ, Path.cwd())
    job = facts.read_facts(folder, time.time(), metrics=False)
    by = runner.of(folder)
    state = runner.state(folder)
    if state == "elsewhere":
        runner_place = f"on {by.machine}, pid {by.pid} there" if by is not None else "in another container"
        raise UserError(
            f"{job.name} is run {runner_place}: it cannot be signalled from here", hint="Run toolkit stop there."
        )
    if by is None or state == "gone" or not _signal(by):
        log.info(f"{job.name} does not run: {job.status}")
        return 0
    grace_s = AGAIN_S if arguments.now else 120
    log.info(f"{job.name}: SIGTERM to all hosts; SIGKILL to what still runs after {grace_s} s")
    try:
        if arguments.now and not follow.wait(folder, until_s=time.monotonic() + AGAIN_S):
            log.info(f"{job.name}: SIGKILL to all hosts")
            _signal(by)
        follow.wait(folder)
    except KeyboardInterrupt:
        log.info("not waiting any more; the job is being stopped")
        return exit_codes.INTERRUPTED
    job = facts.read_facts(folder, time.time(), metrics=False)
    log.info(f"{job.name}: {job.status}, exit code {job.exit_code}, after {facts.clock(job.training_s)}")
    return 0


def _signal(by: "JobRunner") -> bool:
    from toolkit.commands.simulate.runner import send

    try:
        return send(by, signal.SIGTERM)
    except PermissionError:
        raise UserError(
            f"expected a job of your own, found one of another user (pid {by.pid})", hint="Stop it as that user."
        ) from None
