"""`toolkit partition profile SCRIPT|JOB` decides which module is in which partition; `toolkit partition show FILE`
draws a decision."""

import argparse
import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from toolkit.cli import run as run_command
from toolkit.cli.parser import Parser, one_of, whole
from toolkit.cli.report import WRITERS, asked, write
from toolkit.errors import UserError
from toolkit.folders import is_dir, is_file
from toolkit.log import Log

OWN_OPTIONS = ("-o", "--output", "--partitions", "--optimize")
TORCHRUN = {"torch_distributed": {"enabled": True}}


def add(parser: argparse.ArgumentParser) -> None:
    """Declare the actions and their options."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    profile = actions.add_parser(
        "profile",
        help="measure a script's model in one process and decide its partition",
        description="Run the script or job in one process up to its first step of the model parallel library, measure "
        "the model's modules over one microbatch, and write the decision, which the parameter partition_file of the "
        "real job takes. Exit code: 0; the job's if it failed; 78 for a wrong option, or no step.",
    )
    profile.add_argument(
        "--output",
        "-o",
        type=Path,
        metavar="FILE",
        default=Path("partition.json"),
        help="where the decision goes (default: partition.json)",
    )
    profile.add_argument(
        "--partitions", type=whole, metavar="N", help="for a script: the number of partitions of the model"
    )
    profile.add_argument(
        "--optimize", type=one_of(("memory", "speed")), metavar="WHAT", help="for a script: memory (default) or speed"
    )
    profile.add_argument(
        "job", nargs=argparse.REMAINDER, metavar="SCRIPT|JOB ...", help="as of toolkit run, with its options behind it"
    )
    profile.set_defaults(handle=_profile)
    show = actions.add_parser(
        "show",
        help="draw a partition decision: partitions, modules, transfers",
        description="Show what each partition has, which module is in which partition, and what crosses between them.",
    )
    show.add_argument("file", metavar="FILE|JOB_DIR", type=Path, help="a decision, or a job's folder")
    show.add_argument("--output", "-o", metavar="FILE", help="write to this file (default: standard output)")
    show.add_argument(
        "--format",
        type=one_of(WRITERS),
        metavar="NAME",
        help=f"{', '.join(WRITERS)} (default: by the ending of FILE, else text)",
    )
    show.set_defaults(handle=_show)


def run(arguments: argparse.Namespace, log: Log) -> int:
    """Carry out the action; return the exit code.

    Raises:
        ContractError: the file is no decision.
        UserError: an option is wrong, there is no decision, or the output cannot be written.
    """
    code: int = arguments.handle(arguments, log)
    return code


def _show(arguments: argparse.Namespace, log: Log) -> int:  # noqa: ARG001 - both actions are called alike
    from toolkit.commands.report.sections.partition import build_page
    from toolkit.parallelism import decision

    file: Path = arguments.file
    if is_dir(file):
        file = _find_decision(file)
    arguments.output = arguments.output or "-"
    form, target = asked(arguments, file)
    write(build_page(decision.read(file), file.name, now_s=time.time()), form, target)
    return 0


def _profile(arguments: argparse.Namespace, log: Log) -> int:
    if not arguments.job:
        raise UserError("expected a script or a job file, found none", where="toolkit partition profile")
    words = _build_job_words(arguments)
    parser = Parser(prog="toolkit partition profile")
    run_command.add(parser)
    parsed = parser.parse_args(words)
    parsed.command = "run"
    job = run_command.read(vars(parsed), Path.cwd(), run_command.stamp(time.time_ns()))
    parsed.name, parsed.job_dir = job.name, str(job.run.job_dir)
    code = run_command.run(parsed, log)
    if code:
        return code
    decision_file = _find_decision(job.run.job_dir)
    shutil.copyfile(decision_file, arguments.output)
    sys.stdout.write("\n")
    return _show(argparse.Namespace(file=arguments.output, output="-", format=None), log)


def _build_job_words(arguments: argparse.Namespace) -> list[str]:
    """Return the arguments of `toolkit run` for the profiling job: one process, and for a script its parameters."""
    from toolkit.job.file.text_formats import is_job_file
    from toolkit.train.launchers.modelparallel import PROFILE

    _check_order(arguments.job)
    words = [*arguments.job, "--hosts", "1", "--processes-per-host", "1", "--env", f"{PROFILE}=1"]
    parameters = {"partitions": arguments.partitions, "optimize": arguments.optimize}
    chosen: dict[str, Any] = {name: value for name, value in parameters.items() if value is not None}
    if is_job_file(Path(arguments.job[0])):
        if chosen:
            raise UserError(
                f"expected the job file to have its parameters, found --{next(iter(chosen))}",
                where="toolkit partition profile",
                hint="Change its distribution, or name the script in place of the job file.",
            )
        return words
    if "--distribution" in words:
        return words
    if "partitions" not in chosen:
        raise UserError(
            "expected --partitions, the number of partitions of the model, found none",
            where="toolkit partition profile",
            hint=f"For example: toolkit partition profile --partitions 2 {arguments.job[0]}",
        )
    parallel = {"modelparallel": {"enabled": True, "parameters": chosen}}
    return [*words, "--distribution", json.dumps({**TORCHRUN, "smdistributed": parallel})]


def _check_order(words: list[str]) -> None:
    """See that none of the action's own options stands behind the script or job.

    Raises:
        UserError: one does.
    """
    for word in words[1:]:
        if word == "--":  # The script's own arguments follow.
            return
        name = word.partition("=")[0]
        if name in OWN_OPTIONS or (name.startswith("-o") and not name.startswith("--")):
            raise UserError(
                f"expected the options of `toolkit partition profile` before {words[0]}, found {name} behind it",
                where="toolkit partition profile",
                hint=f"For example: toolkit partition profile {name if name in OWN_OPTIONS else '-o'} VALUE {words[0]}",
            )


def _find_decision(folder: Path) -> Path:
    """Return the decision in a job's *folder*.

    Raises:
        UserError: the job made none.
    """
    from toolkit.commands import jobs
    from toolkit.parallelism import decision

    files = [host.output / "data" / decision.FILE for host in jobs.read(folder, now_s=time.time()).hosts]
    unreadable: list[OSError] = []
    for file in files:
        if is_file(file, unreadable.append):
            return file
    if unreadable:
        raise unreadable[0]
    raise UserError(
        f"expected a partition decision, found no {decision.FILE} in output/data of any host",
        where=str(folder),
        hint="It is made in the first step (@smp.step) of a script that uses smdistributed.modelparallel.",
    )
