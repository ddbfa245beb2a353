"""`toolkit jobs`: the jobs of `toolkit run`, running and ended."""

import argparse
import json
import os
import time
from pathlib import Path

from toolkit.cli.parser import Parser
from toolkit.log import Log


def add(parser: Parser) -> None:
    """Declare the arguments."""
    parser.add_argument("--running", action="store_true", help="only the jobs that run")
    parser.add_argument("--json", action="store_true", help="the same as a JSON list, as toolkit describe has each")


def run(arguments: argparse.Namespace, log: Log) -> int:
    """Print the jobs, the newest first; return the exit code."""
    from toolkit.local import catalogue, facts

    now_s = time.time()
    known = catalogue.entries(os.environ)
    told = tuple(facts.facts(entry.folder, now_s, metrics=arguments.json) for entry in known)
    told = tuple(each for each in told if not (arguments.running and each.ended))
    if arguments.json:
        print(json.dumps([facts.document(each) for each in told], indent=2))
    elif told:
        print(facts.table(told, relative_to=Path.cwd()))
    else:
        log.info("no jobs" if not known else "no job runs; without --running those that ended are shown")
    return 0
