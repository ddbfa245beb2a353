"""`toolkit check`: show this host's job without starting it."""

import argparse
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

import toolkit
from toolkit.commands.check.preflight import CheckReport, check
from toolkit.commands.check.result import CheckResult, worst
from toolkit.exit_codes import MISCONFIGURED
from toolkit.job.plan import Plan
from toolkit.log import Log, masked
from toolkit.masking.text import mask_arguments
from toolkit.records import encode

WIDTH = 100  # The most columns; also used without a terminal.
DESCRIPTION = """\
Look at the job of this host as `train` would find it, and start nothing: what would be run with which
arguments and environment, and what would go wrong. Nothing on the disk is changed.
"""
EPILOG = """\
Exit code: 0, or 78 if a line of the table fails.
"""


def add(parser: argparse.ArgumentParser) -> None:
    """Declare the command's own options."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = DESCRIPTION
    parser.epilog = EPILOG
    parser.add_argument("--json", action="store_true", help="the same as one JSON document, whole and unwrapped")


def run(arguments: argparse.Namespace, log: Log) -> int:
    """Print the plan and the table; return 0, or 78 if a line fails."""
    environ = dict(os.environ)
    report = check(environ, interpreter=sys.executable, log=log)
    failed = worst(report.results) == "fail"
    if arguments.json:
        text = msgspec.json.format(encode(_mask(_document(report, environ, failed), log)), indent=2)
        print(text.decode(), flush=True)
    else:
        print("\n".join(lines(report, environ, log.mask)), flush=True)
    return MISCONFIGURED if failed else 0


def _document(report: CheckReport, environ: Mapping[str, str], failed: bool) -> dict[str, Any]:
    job, plan = report.job, report.plan
    return {
        "toolkit": toolkit.__version__,
        "job": job and job.spec.name,
        "host": job and job.cluster.current,
        "plan": plan and _describe_plan(plan, environ),
        "checks": msgspec.to_builtins(report.results),
        "exit_code": MISCONFIGURED if failed else 0,
    }


def _describe_plan(plan: Plan, environ: Mapping[str, str]) -> dict[str, Any]:
    return {
        "launcher": plan.launcher,
        "role": plan.role,
        "world_size": plan.world_size,
        "modules": plan.modules,
        "choice": plan.choice,
        "notes": plan.notes,
        "phases": [
            {
                "name": phase.name,
                "needs": [{"what": str(need), "within_s": need.within_s} for need in phase.needs],
                "argv": mask_arguments(phase.main.argv),
                "cwd": str(phase.main.cwd),
                "environment_added": masked(
                    {k: v for k, v in sorted(phase.main.environ.items()) if environ.get(k) != v}
                ),
                "grace_s": phase.main.stop.grace_s,
                "services": [
                    {"name": service.name, "argv": mask_arguments(service.argv)} for service in phase.services
                ],
            }
            for phase in plan.phases
        ],
    }


def _mask(value: Any, log: Log) -> Any:
    """Return *value* with every known secret masked. Call it before texts are quoted as JSON, which may hide a secret's
    characters."""
    if isinstance(value, str):
        return log.mask(value)
    if isinstance(value, dict):
        return {key: _mask(entry, log) for key, entry in value.items()}
    return [_mask(entry, log) for entry in value] if isinstance(value, list | tuple) else value


def lines(report: CheckReport, environ: Mapping[str, str], mask: Callable[[str], str]) -> Iterator[str]:
    """Yield the lines of the plan and the table. *mask* masks the secrets in each text before it is cut or folded."""
    if report.plan is not None:
        for line in mask(report.plan.text(dict(environ))).splitlines():
            yield from _fit(line)
        yield ""
    width = max(len(result.name) for result in report.results)
    for result in report.results:
        yield from _format_row(msgspec.structs.replace(result, found=mask(result.found)), width)
    counts = [sum(result.status == status for result in report.results) for status in ("ok", "warn", "fail")]
    yield "\n{} ok, {} warn, {} fail".format(*counts)


def _fit(line: str) -> list[str]:
    """Return a line of the plan, folded (argv, note, needs) or cut to the width; --json shows all of it."""
    if line.lstrip().startswith(("argv:", "note:", "needs:")):
        return _fold(line, "    ")
    return [line if len(line) <= _choose_width() else f"{line[: _choose_width() - 3]}..."]


def _format_row(result: CheckResult, width: int) -> list[str]:
    """Return a line of the table, folded below its last column. The advice begins on a line of its own."""
    margin = " " * (width + 8)
    rows = _fold(f"{result.status:<4}  {result.name:<{width}}  {result.found}", margin)
    if result.advice:
        rows += _fold(f"{margin}-> {result.advice}", margin + "   ")
    return rows


def _fold(line: str, margin: str) -> list[str]:
    """Return *line* in pieces of the terminal's width; a word is never broken, so that it can be copied."""
    folder = textwrap.TextWrapper(
        _choose_width(), subsequent_indent=margin, break_long_words=False, break_on_hyphens=False, drop_whitespace=True
    )
    return folder.wrap(line) or [""]


def _choose_width() -> int:
    return min(shutil.get_terminal_size((WIDTH, 24)).columns, WIDTH)
