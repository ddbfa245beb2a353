"""`toolkit health`: tell whether this container's `train` still works, for a HEALTHCHECK or a liveness probe."""

import argparse
import os
import time

from toolkit.log import Log

EPILOG = """\
Exit code 1: train's own loop has not moved for 60 s, or a hang was found (TOOLKIT_STALL_S). The output says which.
Exit code 0: train works, or no job runs. A script that computes for hours without output is healthy.
"""


def add(parser: argparse.ArgumentParser) -> None:
    """Set the help text; the command has no options."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG


def run(arguments: argparse.Namespace, log: Log) -> int:  # noqa: ARG001 - every command is called alike
    """Return 1 and print what is wrong, or return 0."""
    from toolkit.train.platforms import table as platforms
    from toolkit.train.supervise.liveness import trouble

    environ = dict(os.environ)
    fault = trouble(platforms.detect(environ).folders(environ).scratch, time.monotonic())
    if fault:
        print(fault)
    return 1 if fault else 0
