"""argv in, exit status out: the console scripts `train` and `toolkit`. The only place that reads the environment."""

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING

from toolkit.log import Log

if TYPE_CHECKING:
    import argparse

COMMANDS = {
    "train": "run the job of this container (what the console script `train` does)",
    "run": "play the platform on this machine: hosts, documents, channels, faults",
    "check": "look at this host's job without starting it: the plan, and what would go wrong",
    "metrics": "try metric definitions on a log",
    "rules": "try log rules on a log",
    "render": "write the manifest that runs a job file on Kubernetes, Slurm or Compose",
    "mpi-agent": "what mpirun starts in place of ssh: HOST COMMAND... has that host's train run its daemon",
    "health": "does the job of this container still move? For a HEALTHCHECK or a liveness probe",
}


def train() -> None:
    """Run `train`. Arguments are not read: the orchestrator may pass any."""
    from toolkit.train.walk import train as walk

    _fill_standard_streams()
    sys.exit(walk(dict(os.environ), interpreter=sys.executable, log=Log()))


def mpi_agent(words: list[str]) -> None:
    """Become the remote agent of mpirun (hook/mpi_agent.py). Its options are ssh's, which argparse would not leave."""
    import toolkit

    agent = f"{toolkit.__path__[0]}/hook/mpi_agent.py"
    os.execv(sys.executable, (sys.executable, "-I", "-S", agent, *words))


def _fill_standard_streams() -> None:
    """Open /dev/null for each of descriptors 0 to 2 that is closed (`train >&-`).

    The next descriptor to be opened would take the number, and what is written to stderr would end up in it: in the
    signals' own pipe, as signals.
    """
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:  # The lowest free number, so they are filled in order.
        pass
    os.close(fd)


def main(argv: list[str] | None = None) -> None:
    """Run `toolkit COMMAND ...`."""
    words = sys.argv[1:] if argv is None else argv
    if words[:1] == ["train"]:
        train()
    if words[:1] == ["mpi-agent"]:
        mpi_agent(words[1:])
    parser = _parser(words)
    arguments = parser.parse_args(words)
    if arguments.command is None:
        parser.print_help()
        sys.exit(2)
    from toolkit.errors import ToolkitError

    log = Log()
    try:
        sys.exit(import_module(f"toolkit.cli.{arguments.command}").run(arguments, log))
    except ToolkitError as error:
        log.error(str(error))
        sys.exit(error.exit_code)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # `toolkit ... | head`: not an error, and not to be said at exit
        sys.exit(141)


def _parser(words: list[str]) -> "argparse.ArgumentParser":
    import argparse

    import toolkit

    parser = argparse.ArgumentParser(prog="toolkit", description="The training toolkit, for the people beside `train`.")
    parser.add_argument("--version", action="version", version=toolkit.__version__)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, summary in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary)
        if name in words[:1] and name != "train":
            import_module(f"toolkit.cli.{name}").add(command)
    return parser


if __name__ == "__main__":
    main()
