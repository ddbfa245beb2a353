"""The console scripts `train` and `toolkit`. Only cli/ reads the environment."""

import errno
import gc
import os
import sys
from functools import partial
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit import exit_codes
from toolkit.cli.outermost import guarded
from toolkit.cli.streams import fill_standard_streams, use_utf_8

if TYPE_CHECKING:
    from toolkit.cli.parser import Parser
    from toolkit.errors import ToolkitError
    from toolkit.train.supervise.signals import Signals

COMMANDS = {
    "train": "run the job of this container (what the console script `train` does)",
    "run": "simulate the platform on this machine: hosts, documents, channels, faults",
    "torchrun": "run the line that follows torchrun, with causes, exit codes and stops that torchrun lacks",
    "rerun": "run a job again as it was, and say first what cannot be the same",
    "jobs": "list the jobs of toolkit run, running and ended",
    "attach": "follow the output of a job of toolkit run to its end",
    "stop": "stop a job of toolkit run as the platform would, and wait for its end",
    "describe": "show the facts of a job of toolkit run, as DescribeTrainingJob has them",
    "check": "look at this host's job without starting it: the plan, and what would go wrong",
    "why": "say in at most 2 kB why a job ended as it did: cause, culprit, evidence, what to do; for programs, too",
    "mcp": "serve the answers of why, jobs, describe and compare to programs that speak the Model Context Protocol",
    "report": "show how a job ended and where its time went",
    "profile": "let the ranks of a running job trace their next steps",
    "metrics": "try metric definitions on a log",
    "rules": "try log rules on a log; show what the rules of the diagnosis find in a job",
    "render": "write the manifest that runs a job file on Kubernetes, Slurm, AWS Batch and others",
    "storage": "list, fetch, add and remove what is stored of a job: checkpoints by step and time",
    "compare": "set jobs side by side: savings, throughput, loss, epochs, steps and findings",
    "partition": "decide which module of a model is on which device; draw such a decision",
    "scale": "scale learning rate and weight decay to a new batch size",
    "batch": "find the largest batch that fits into memory, native and compiled",
    "docs": "show a page of the documentation, as messages name them (docs/failures.md)",
    "mpi-agent": "start mpirun's daemon on a host, in place of ssh (HOST COMMAND...): that host's train runs it",
    "health": "tell whether train in this container still works, for a HEALTHCHECK or a liveness probe",
}
# Other tools' names for the same.
ELSEWHERE = {
    **dict.fromkeys(("ps", "ls", "list"), "jobs"),
    **dict.fromkeys(("log", "logs", "tail"), "attach"),
    **dict.fromkeys(("kill", "cancel"), "stop"),
    **dict.fromkeys(("start", "submit", "launch", "exec"), "run"),
    **dict.fromkeys(("status", "show", "inspect"), "describe"),
    **dict.fromkeys(("explain", "reason", "cause"), "why"),
    **dict.fromkeys(("help",), "--help"),
    **dict.fromkeys(("version",), "--version"),
}
TRAIN_HELP = """\
usage: train

Run the job of this container: read its documents and variables, start its script under the right launcher on every
host, relay what it prints, and end with its exit code. It takes no arguments; others than these are ignored:

  --help      show this and end
  --version   show the version and end

It reads TOOLKIT_PROGRAM or a job file (TOOLKIT_JOB), SageMaker's documents below /opt/ml and SAGEMAKER_* variables, or
what Kubernetes, Slurm, Vertex AI and others set. To read more: toolkit docs orchestrators, toolkit docs settings.
To see what it would do here, without starting anything: toolkit check
"""


def train(words: list[str] | None = None, *, signals: "Signals | None" = None) -> None:
    """Run `train`. It ignores its arguments, except a first --help or --version: orchestrators may pass any.

    *signals*: the signal handlers that start.py installed.
    """
    arguments = sys.argv[1:] if words is None else words
    while arguments[:1] == ["train"]:  # `docker run IMAGE train` if train is also the image's ENTRYPOINT.
        arguments = arguments[1:]
    if arguments[:1] in (["--help"], ["-h"]):
        print(TRAIN_HELP, end="")
        sys.exit(0)
    if arguments[:1] == ["--version"]:
        import toolkit

        print(toolkit.__version__)
        sys.exit(0)
    # Where one of them fails, msgspec's own import of it crashes the process; without the first one, its first use of
    # a date does: `datetime` has a second implementation, which msgspec cannot use.
    import _datetime  # type: ignore[import-not-found]  # noqa: F401
    import datetime  # noqa: F401
    import decimal  # noqa: F401
    import enum  # noqa: F401
    import re  # noqa: F401
    import typing  # noqa: F401
    import uuid  # noqa: F401

    from toolkit.log import Log  # Imports msgspec, which --help and --version do not need.
    from toolkit.train.walk import train as walk

    gc.freeze()
    gc.enable()  # start.py has disabled it.

    if signals is None:
        fill_standard_streams(writable=False)
    log = Log()
    if arguments:  # Do not show them: one may be a secret.
        hint = "another program in the image is started with docker run --entrypoint PROGRAM IMAGE"
        log.info(f"train takes no arguments, {len(arguments)} ignored; {hint}")
    sys.exit(walk(dict(os.environ), interpreter=sys.executable, log=log, signals=signals))


def torchrun(words: list[str]) -> None:
    """Run `toolkit torchrun`. Its line is torchrun's, which this parser would misread."""
    gc.disable()  # As for `train` (start.py).
    fill_standard_streams(writable=False)
    from toolkit.cli.torchrun import torchrun as run

    gc.freeze()
    gc.enable()
    run(words)


def mpi_agent(words: list[str]) -> None:
    """Exec mpirun's remote agent (rank/hook/mpi_agent.py). It takes ssh's options, which argparse would misread."""
    import toolkit

    agent = f"{toolkit.__path__[0]}/rank/hook/mpi_agent.py"
    os.execv(sys.executable, (sys.executable, "-I", "-S", agent, *words))


def main(argv: list[str] | None = None) -> None:
    """Run `toolkit COMMAND ...`."""
    words = sys.argv[1:] if argv is None else argv
    use_utf_8()
    if words[:1] == ["train"]:
        guarded(partial(train, words[1:]))
    if words[:1] == ["torchrun"]:
        guarded(partial(torchrun, words[1:]))
    _open_standard_streams()
    if words[:1] == ["mpi-agent"]:
        mpi_agent(words[1:])
    completing = "_ARGCOMPLETE" in os.environ
    parser = _parser(list(COMMANDS) if completing else words[:1])
    if completing:
        _complete(parser)
    if words and not words[0].startswith("-") and words[0] not in COMMANDS:
        from toolkit.errors import did_you_mean

        script = words[0].endswith((".py", ".sh", ".toml", ".yaml", ".yml", ".json"))
        meant = f"run {words[0]}" if script else ELSEWHERE.get(words[0], "")
        hint = f"Did you mean toolkit {meant}?" if meant else did_you_mean(words[0], COMMANDS)
        parser.error(f"expected one of {', '.join(COMMANDS)}, found {words[0]!r}. {hint}".rstrip())
    behind = words[words.index("--") + 1 :] if words[:1] == ["run"] and "--" in words else []
    arguments = parser.parse_args(words[: len(words) - len(behind) - 1] if behind else words)
    arguments.behind = behind
    if arguments.command is None:
        parser.print_help()
        sys.exit(2)
    from toolkit.errors import ToolkitError, explain_path_error
    from toolkit.log import Log

    log = Log()
    _end_cleanly()
    try:
        _let_ctrl_c_interrupt()
        exit_code = import_module(f"toolkit.cli.{arguments.command}").run(arguments, log)
        sys.stdout.flush()
        sys.exit(exit_code)
    except KeyboardInterrupt:
        sys.exit(exit_codes.INTERRUPTED)
    except ToolkitError as error:
        log.error(str(error))
        sys.exit(error.exit_code)
    except OSError as error:
        if not isinstance(error, BrokenPipeError):
            refusal = explain_path_error(error) or _explain_surroundings(error)
            if refusal is None:
                raise
            log.error(str(refusal))
            sys.exit(refusal.exit_code)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # `toolkit ... | head` is no error: let Python's exit report none
        sys.exit(141)


def _explain_surroundings(error: OSError) -> "ToolkitError | None":
    """Return what to tell of *error*, which names no path: nothing more can be written, to standard output as a rule,
    or the current folder is gone. None if it is neither."""
    from toolkit.errors import PlatformError, UserError

    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python would try again at its exit.
        return PlatformError(f"the output cannot be written ({error.strerror})")
    try:
        Path.cwd()
    except FileNotFoundError:
        return UserError("expected a current folder, found that it was removed", hint="Change to another one.")
    return None


def _end_cleanly() -> None:
    """Let SIGTERM and SIGHUP raise SystemExit, so that the command removes its temporary folders."""
    import signal

    def end(number: int, _frame: object) -> None:
        sys.exit(exit_codes.of_signal(number))

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, end)


def _let_ctrl_c_interrupt() -> None:
    """Let Ctrl-C raise KeyboardInterrupt again (start.py), unless it is ignored."""
    import signal

    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _open_standard_streams() -> None:
    """Open /dev/null for a command that was started without stdout or stderr (`>&-`)."""
    fill_standard_streams(writable=True)
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115 - as long as the process
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors == "strict":
        # A path may be of any bytes, and the terminal's encoding may lack a letter.
        sys.stdout.reconfigure(errors="backslashreplace")


def _parser(commands_to_load: list[str]) -> "Parser":
    """Return the parser, with the options of the commands in *commands_to_load* only: the others are not imported."""
    import toolkit
    from toolkit.cli.parser import Parser

    parser = Parser(
        prog="toolkit",
        description="Commands to check, simulate and deploy training jobs; `train` runs them.",
        epilog="Options of a command: toolkit COMMAND --help. The manual: toolkit docs. The stable interface for"
        " programs: toolkit why JOB --json",
    )
    parser.add_argument("--version", action="version", version=toolkit.__version__)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, summary in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary)
        if name in commands_to_load and name not in ("train", "torchrun", "mpi-agent"):
            import_module(f"toolkit.cli.{name}").add(command)
    return parser


def _complete(parser: "Parser") -> None:
    """Print a shell's completions and exit; without argcomplete (the extra `terminal`) exit at once."""
    try:
        from argcomplete import autocomplete
    except ImportError:
        sys.exit(1)
    autocomplete(parser)


if __name__ == "__main__":
    main()
