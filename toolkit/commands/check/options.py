"""Compares the options that the job passes with those that the script declares, as its source says: nothing is run.

argparse's `parse_known_args` drops an option that it does not know, so `train_batch_size` for a script that knows
`--train-batch-size` changes nothing, silently; with `parse_args` the script ends with 2.
"""

import ast
import warnings
from collections.abc import Iterator
from pathlib import Path

from toolkit.commands.check.result import CheckResult
from toolkit.job.arguments import arguments
from toolkit.job.job import Job
from toolkit.records import Record

MOST_BYTES = 4 * 1024 * 1024
# Calls that declare an option: argparse's, and click's and typer's.
_DECLARING = ("add_argument", "option", "Option")
_LENIENT = ("parse_known_args", "parse_known_intermixed_args")


class Declared(Record, frozen=True, kw_only=True):
    """The options in a script's source; `is_lenient`: unknown ones are dropped."""

    options: tuple[str, ...]
    is_lenient: bool


def check(job: Job, declared: Declared | None) -> tuple[CheckResult, ...]:
    """Return a warning for options of *job* that its script, which has *declared* some, knows only in another
    spelling."""
    script = job.script
    if script is None or declared is None or job.arguments is not None:
        return ()
    passed = {
        name: tokens[0]
        for name in job.spec.hyperparameters
        if (tokens := arguments({name: 1}, script.argument_style)) and tokens[0].startswith("--")
    }
    wrong = [
        (name, declared_option)
        for name, option in passed.items()
        if (declared_option := nearest(option, declared.options))
    ]
    if not wrong:
        return ()
    finding = "; ".join(
        f"{passed[name]} is passed, {script.entry} knows {declared_option}" for name, declared_option in wrong
    )
    effect = "its parse_known_args drops such an option silently" if declared.is_lenient else "it may refuse the option"
    renamed = ", ".join(declared_option.removeprefix("--") for _, declared_option in wrong)
    advice = f"{effect[0].upper()}{effect[1:]}: name the hyperparameter{'s' * (len(wrong) > 1)} {renamed}"
    return (CheckResult(name="options", status="warn", found=finding, advice=advice),)


def read(file: Path) -> Declared | None:
    """Return the options that the source in *file* declares; None if it declares none or cannot be read."""
    try:
        with file.open("rb") as source, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Of the script's own escapes.
            tree = ast.parse(source.read(MOST_BYTES))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None  # `code` has said what is wrong, or the script will.
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    options = tuple(dict.fromkeys(option for call in calls for option in _options(call)))
    if not options:
        return None
    return Declared(options=options, is_lenient=any(_name(call) in _LENIENT for call in calls))


def nearest(option: str, declared: tuple[str, ...]) -> str:
    """Return the one of *declared* that differs from *option* in dashes, underscores or case alone, "" if none does or
    if the script knows *option*, also as the begin of a name, which argparse completes."""
    if any(known_option.startswith(option) for known_option in declared):
        return ""
    plain = _plain(option)
    return next((known_option for known_option in declared if _plain(known_option) == plain), "")


def _plain(option: str) -> str:
    return option.replace("-", "").replace("_", "").lower()


def _options(call: ast.Call) -> Iterator[str]:
    if _name(call) in _DECLARING:
        for argument in call.args:
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                # click writes "--shuffle/--no-shuffle" for a switch.
                yield from (name for name in argument.value.split("/") if name.startswith("--"))


def _name(call: ast.Call) -> str:
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""
