"""`toolkit jobs`: the jobs of `toolkit run`, running and ended."""

import argparse
import json
import os
import time
from itertools import islice
from pathlib import Path

from toolkit.cli.parser import Parser, whole
from toolkit.errors import UserError
from toolkit.log import Log


def add(parser: Parser) -> None:
    """Declare the arguments."""
    parser.add_argument("--running", action="store_true", help="only the jobs that run")
    parser.add_argument("--limit", metavar="N", type=whole, help="only the N newest of these")
    parser.add_argument("--json", action="store_true", help="the same as a JSON list, as toolkit describe has each")


def run(arguments: argparse.Namespace, log: Log) -> int:
    """Print the jobs, the newest first; return the exit code.

    Raises:
        UserError: the limit is not above 0.
    """
    from toolkit.commands.simulate import catalogue, facts

    now_s = time.time()
    entries = catalogue.entries(os.environ)
    if arguments.limit is not None and arguments.limit < 1:
        raise UserError(f"expected a number of jobs of at least 1, found {arguments.limit}", where="--limit")
    every = (facts.read_facts(entry.folder, now_s, metrics=arguments.json) for entry in entries)
    selected = (job for job in every if not (arguments.running and job.ended))
    jobs = tuple(islice(selected, arguments.limit))
    if arguments.json:
        print(json.dumps([facts.document(job) for job in jobs], indent=2))
    elif jobs:
        print(facts.table(jobs, relative_to=Path.cwd()))
    else:
        without = "no list of jobs is kept: neither HOME nor XDG_STATE_HOME names a folder"
        none = "no jobs" if catalogue.home(os.environ) else without
        log.info("no job runs; without --running those that ended are shown" if entries else none)
    return 0
