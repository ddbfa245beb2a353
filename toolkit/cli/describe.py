"""`toolkit describe NAME`: the facts of a job of `toolkit run`, as SageMaker's DescribeTrainingJob has them."""

import argparse
import json
import os
import time
from pathlib import Path

from toolkit.cli.parser import Parser
from toolkit.log import Log


def add(parser: Parser) -> None:
    """Declare the arguments."""
    parser.add_argument("job", metavar="NAME", help="the job's name (toolkit jobs) or its folder")
    parser.add_argument("--json", action="store_true", help="as JSON, with the keys of DescribeTrainingJob")


def run(arguments: argparse.Namespace, log: Log) -> int:  # noqa: ARG001 - every command is called alike
    """Print the facts; return the exit code."""
    from toolkit.commands.simulate import catalogue, facts

    job = facts.read_facts(catalogue.find(arguments.job, os.environ, Path.cwd()), time.time())
    print(json.dumps(facts.document(job), indent=2) if arguments.json else facts.text(job))
    return 0
