"""`toolkit run`: simulate the platform on this machine."""

import argparse
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit import exit_codes
from toolkit.cli.parser import Parser, whole
from toolkit.log import Log

if TYPE_CHECKING:
    from toolkit.commands.simulate.watch import LivePage
    from toolkit.job.file.job_file import JobFile

# Arguments of `toolkit run` only; all others are options of the job.
OWN = ("command", "detach", "dry_run", "plain", "quiet", "watch", "behind")
EPILOG = """\
The same options are the keys of a job file (toolkit run job.toml); arguments beside it win.
Exit code: the job's. 0 completed; the first failing host's; 75 a host vanished; 143 stopped, 130 by Ctrl-C;
78 an option or path is wrong, nothing was started. With --detach 0 as soon as the job has started.
Words behind -- are the script's own: toolkit run train.py -- --epochs 3 --amp
"""


def add(parser: Parser) -> None:
    """Declare the options; job/file/ says what they mean."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG

    def option(name: str, metavar: str, meaning: str, **more: Any) -> None:
        parser.add_argument(name, metavar=metavar, help=meaning, **more)

    def switch(name: str, meaning: str, *short: str) -> None:
        parser.add_argument(*short, name, action="store_true", help=meaning)

    option("script", "SCRIPT|JOB", "the script to train with, or a job file (.toml, .yaml, .json)")
    switch("--dry-run", "start nothing: check the job and show what it is")
    option("--source", "DIR", "the folder that is submitted (default: the script's)")
    option("--name", "NAME", "the job's name (default: the script's and the time)")
    option("--job-dir", "DIR", "where everything about the job goes (default: jobs/NAME)")
    parser.add_argument(
        "--replace",
        action="store_const",
        const=True,
        help="remove the results of an earlier job of that name or folder, once this one is ready to start",
    )
    option("--hosts", "N", "number of hosts (default: 1)", type=whole)
    option("--processes-per-host", "N", "ranks on each host (default: its GPUs, or 1)", type=whole)
    option("--distribution", "NAME", "torchrun, ddp, mpi, smddp, ..., or the SDK's dictionary as JSON")
    option("--hyperparameter", "NAME=VALUE", "a hyperparameter, JSON if it is JSON", action="append")
    option(
        "--channel",
        "NAME=PATH[:MODE]",
        "an input channel: File, FastFile, Pipe or FileSystem, ShardedByS3Key",
        action="append",
    )
    option("--metric", "NAME=REGEX", "a metric definition; the first group is the value", action="append")
    option("--env", "NAME=VALUE", "a variable of the job's environment", action="append")
    option("--requirements", "FILE", "installed before the script starts")
    option("--rules", "FILE", "log rules that the job is watched by (toolkit docs rules)")
    parser.add_argument(
        "--disable-profiler", action="store_const", const=True, help="no system monitor (toolkit docs monitor)"
    )
    option("--checkpoints", "DIR", "the hosts' /opt/ml/checkpoints; outlives the job")
    option("--max-run", "TIME", "stop the job as MaxRuntimeInSeconds does (30s, 10m, 1h)")
    option("--stop-after", "TIME", "stop the job as StopTrainingJob does")
    option("--interrupt", "TIME[+WAIT]", "a spot interruption: SIGTERM, then the job starts again", action="append")
    option("--max-wait", "TIME", "stop the job as MaxWaitTimeInSeconds does: training and waiting together")
    option("--kill", "HOST@TIME", "let a host vanish (algo-2@5s)", action="append")
    option("--backend", "NAME", "process: hosts are processes here (default); docker: containers of --image")
    option("--image", "IMAGE", "the image of the hosts' containers")
    option("--memory", "SIZE", "a container's memory (2g); what needs more is killed")
    option("--shm-size", "SIZE", "a container's /dev/shm (default: 1g)")
    switch("--detach", "run in the background: print the job's name and folder, and end (toolkit attach NAME)", "-d")
    parser.add_argument(
        "--watch",
        metavar="PORT",
        nargs="?",
        const=0,
        type=_parse_port,
        help="show the running job's page on localhost; at the end write it to JOBDIR/report.html",
    )
    switch("--plain", "lines alone: no table that is redrawn, no colours (also: NO_COLOR=1, TERM=dumb, no terminal)")
    switch("--quiet", "show the end alone; what the hosts print is in the job's logs", "-q")


def run(arguments: argparse.Namespace, log: Log) -> int:
    """Run the job; return its exit code."""
    from toolkit.cli.detach import Background, in_background
    from toolkit.commands.simulate.display import Display, DisplayStyle, choose_display, is_live
    from toolkit.commands.simulate.facts import CONSOLE
    from toolkit.commands.simulate.report import summary
    from toolkit.commands.simulate.run import simulate

    environ = dict(os.environ)
    job_file = read(vars(arguments), Path.cwd(), stamp(time.time_ns()))
    log.hide({**environ, **job_file.environment})
    if arguments.quiet:
        log.level = 30
    _log_notes(job_file, arguments, environ, log)
    if arguments.dry_run:
        from toolkit.cli.dry import dry_run

        return dry_run(job_file, environ, log)
    watch = None if arguments.watch is None else _open_watch(arguments.watch)
    background: Background | None = None
    if arguments.detach:
        forked = in_background()
        if not isinstance(forked, Background):
            if forked is None:
                _print(f"{job_file.name}\n{_shorten(job_file.run.job_dir)}\n" + (f"{watch.address}\n" if watch else ""))
            return forked or 0
        background = forked
    look: DisplayStyle = "quiet" if arguments.quiet else "plain" if arguments.plain or background else "auto"
    if is_live(environ, look):
        environ.setdefault("TOOLKIT_LOG_PROGRESS", "live")

    def display() -> Display:
        if background is not None:
            background.started(job_file.run.job_dir / CONSOLE)
        if watch is not None:
            watch.start(job_file.run.job_dir)
            _print(f"the job's page: {watch.address}\n")
        return choose_display(log, several=len(job_file.hosts) > 1, environ=environ, look=look)

    try:
        report = simulate(job_file, environ, log, display, detached=background is not None)
    except KeyboardInterrupt:  # Before or after the job; while it runs, the poll loop handles Ctrl-C.
        log.error("interrupted while the job was being prepared, or its results collected")
        return exit_codes.INTERRUPTED
    finally:
        if watch is not None:
            watch.end()
    page = "" if watch is None else _page(job_file.run.job_dir, log)
    _print(f"\n{summary(report, _shorten(job_file.run.job_dir))}\n{page}")
    return exit_codes.INTERNAL_FAULT if report.exit_code is None else report.exit_code


def _log_notes(job_file: "JobFile", arguments: argparse.Namespace, environ: Mapping[str, str], log: Log) -> None:
    """Say what a person should know of the job before it starts."""
    from toolkit.commands.simulate.documents import region_of
    from toolkit.commands.simulate.limits import exceeded
    from toolkit.job.file.options import number_note

    for text in arguments.hyperparameter or ():
        name, _, value = text.partition("=")
        if note := number_note(name, value):
            log.info(note)
    for text in exceeded(job_file, region_of(environ)):
        log.warning(text)
    count = len(job_file.hosts)
    if count > 1 and job_file.strategy.name == "script" and not arguments.distribution:
        log.info(
            f"no distribution is given: each of the {count} hosts runs the script by itself, and they do not know each"
            " other unless the script connects them (SM_HOSTS). To start one job over all: --distribution torchrun"
        )


def stamp(now_ns: int) -> str:
    """Return the suffix that makes a job's name unique: the time with milliseconds, as in the SageMaker SDK."""
    now_ms = now_ns // 10**6
    return f"{time.strftime('%Y-%m-%d-%H-%M-%S', time.localtime(now_ms // 1000))}-{now_ms % 1000:03}"


def _parse_port(word: str) -> int:
    if not word.isdecimal() or int(word) > 65535:
        raise argparse.ArgumentTypeError(
            f"expected a port of 0 to 65535, found {word!r}; write --watch after the script"
        )
    return int(word)


def _open_watch(port: int) -> "LivePage":
    """Take the port of the job's page, before anything starts.

    Raises:
        UserError: the port is taken, or the extra that writes pages is not installed.
    """
    from toolkit.commands.report.html.page import check_installed
    from toolkit.commands.simulate.watch import LivePage, page_of

    check_installed()
    return LivePage(port, page_of)


def _page(job_dir: Path, log: Log) -> str:
    """Write the page of the ended job and return a line that names it; an error does not change how the job ended."""
    from toolkit.commands.simulate.watch import write_page

    try:
        return f"  report: {_shorten(write_page(job_dir))}\n"
    except Exception as error:  # noqa: BLE001 - nothing may change how the job ended.
        log.error(f"the job's page could not be written: {type(error).__name__}: {error}; toolkit report {job_dir}")
        return ""


def _print(text: str) -> None:
    """Write *text* to stdout as far as possible; an error does not change how the job ended."""
    left = text.encode("utf-8", "replace")
    try:
        sys.stdout.flush()
        while left:
            left = left[os.write(1, left) :]
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # At exit Python must not write its buffer there either.


def read(arguments: Mapping[str, Any], folder: Path, stamp: str) -> "JobFile":
    """Return the JobFile for *arguments*, and the job file if their script is one.

    Raises:
        ContractError, UserError: an option is wrong, or the job file cannot be read.
    """
    from toolkit.errors import ContractError
    from toolkit.job.file.job_file import check_job_file
    from toolkit.job.file.options import Origin, entry_places, from_arguments, joined
    from toolkit.job.file.reading import read as read_file
    from toolkit.job.file.script_arguments import STYLE, hyperparameters
    from toolkit.job.file.text_formats import is_job_file

    options_given = {name: value for name, value in arguments.items() if name not in OWN}
    words = arguments.get("behind") or []
    job_file = folder / options_given["script"]
    is_job = is_job_file(job_file)
    names = _names(options_given, is_job=is_job)
    behind: dict[str, Any] = {}
    source = "toolkit run: the words behind --"
    if words:
        styled = any(pair.partition("=")[0] in STYLE for pair in options_given.get("env") or ())
        behind = {"hyperparameter": hyperparameters(words, source, as_typed=not styled), "env": STYLE}
        hyperparameters_given = {pair.partition("=")[0] for pair in options_given.get("hyperparameter") or ()}
        if twice := next((name for name in behind["hyperparameter"] if name in hyperparameters_given), None):
            hint = f"Leave out one of the two, the option or --hyperparameter {twice}."
            raise ContractError(f"expected each hyperparameter once, found {twice} twice", where=source, hint=hint)
    options: dict[str, Any] = {}
    if is_job:
        options = read_file(job_file, "Name a job file, as job.toml, or a script, as train.py.")
        options_given["script"] = None
    where = str(job_file) if is_job else "toolkit run"
    by_arguments = from_arguments(options_given, folder, Origin(where=where, names=names))
    entries = {
        **entry_places(behind, source + ": {name}"),
        **entry_places(by_arguments, "toolkit run: --{option} {name}"),
    }
    return check_job_file(
        joined(options, joined(behind, by_arguments)),
        Origin(where=where, names=names, entries=entries),
        folder=folder,
        stamp=stamp,
    )


def _names(arguments: Mapping[str, Any], *, is_job: bool) -> dict[str, str]:
    """Return the options given as arguments, each with the place that error messages name."""
    options = {name.replace("_", "-") for name, value in arguments.items() if value not in (None, [])}
    if is_job:
        options.discard("script")
    return {name: f"toolkit run: {'SCRIPT' if name == 'script' else '--' + name}" for name in options}


def _shorten(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
