"""`toolkit why JOB`: why a job ended as it did, or what it does, in at most 2,000 bytes."""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from toolkit.cli.parser import Parser
from toolkit.log import Log

if TYPE_CHECKING:
    from toolkit.job.explanation import Explanation


def add(parser: Parser) -> None:
    """Declare the arguments."""
    parser.description = (
        "Say in at most 2,000 bytes why a job ended as it did, or what it does: state, cause, what to do, culprit, the"
        " line that shows it with its file and offset, what was healthy, where to look. --json is the stable interface"
        " for programs (toolkit docs for-programs). Exit code: 0, whatever the job's; 78 if there is no such job."
    )
    parser.add_argument(
        "job",
        metavar="JOB",
        help="a job of toolkit run (its name or folder), a container's /opt/ml or /opt/ml/output, or a storage address"
        " of such a folder (s3://BUCKET/KEY)",
    )
    parser.add_argument("--json", action="store_true", help="as a JSON object in one line, with every key")


def run(arguments: argparse.Namespace, log: Log) -> int:  # noqa: ARG001 - every command is called alike
    """Print the explanation; return 0.

    Raises:
        UserError: there is no such job.
        PlatformError: the storage cannot be read.
    """
    from toolkit.job.explanation import write_json, write_text

    explanation = explain_named(arguments.job)
    sys.stdout.write(write_json(explanation) if arguments.json else write_text(explanation))
    return 0


def explain_named(word: str) -> "Explanation":
    """Return the explanation of the job that *word* names: a name, a folder or a storage address.

    Raises:
        UserError: there is no such job.
        PlatformError: the storage cannot be read.
    """
    from toolkit.commands.jobs.explaining import explain
    from toolkit.commands.jobs.reading import read
    from toolkit.commands.simulate.catalogue import folder_of
    from toolkit.storage.uri import parse

    now_s = time.time()
    if "://" not in word:
        return explain(read(folder_of(word, os.environ, Path.cwd()), now_s=now_s), now_s=now_s)
    uri = parse(word, "JOB")
    if uri.scheme == "file":
        return explain(read(folder_of(f"/{uri.key}", os.environ, Path.cwd()), now_s=now_s), now_s=now_s)
    from toolkit.commands.jobs.stored import fetch_job

    with tempfile.TemporaryDirectory(prefix="toolkit-why-") as folder:
        copy = Path(folder) / (uri.key.rpartition("/")[2] or uri.bucket)
        fetch_job(uri, os.environ, copy)
        explanation = explain(read(copy, now_s=None), now_s=now_s)
        places = tuple(place for place in explanation.look if not place.startswith("toolkit "))
        return msgspec.structs.replace(explanation, folder=str(uri), look=places)
