"""Runs the job of this container."""

from toolkit.cli import start


def train() -> None:
    """Run the job as the command `train` does, and end this process with its exit code."""
    start.train()
