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
    from toolkit.commands.jobs.explaining import explain
    from toolkit.commands.jobs.reading import read
    from toolkit.commands.simulate import catalogue, facts
    from toolkit.errors import ToolkitError
    from toolkit.job.explanation import make_document, write_text

    now_s = time.time()
    folder = catalogue.find(arguments.job, os.environ, Path.cwd())
    job = facts.read_facts(folder, now_s)
    try:
        explanation = explain(read(folder, now_s=now_s), now_s=now_s)
    except (ToolkitError, OSError):
        explanation = None  # The job has begun this moment, or its files are gone: the facts say so.
    if arguments.json:
        why = None if explanation is None else make_document(explanation)
        print(json.dumps({**facts.document(job), "Why": why}, indent=2))
        return 0
    if explanation is not None and explanation.state not in ("succeeded", "running"):
        print(write_text(explanation))
    print(facts.text(job))
    return 0
