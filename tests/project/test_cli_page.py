"""docs/cli.md is what the commands' parsers say. `python -m tests.project.test_cli_page` writes it anew."""

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

from toolkit.cli.main import COMMANDS, TRAIN_HELP, _parser
from toolkit.train.platforms.torchrun_options import build_parser

PAGE = Path(__file__).parents[2] / "docs/cli.md"
START = """\
# Commands

`toolkit COMMAND --help` shows the same. This page is made from the parsers of the commands by
`python -m tests.project.test_cli_page`.
"""
AGENT = """
mpirun calls it in place of ssh; nobody else needs to ([MPI](mpi.md)).
"""


def page() -> str:
    """Return the text of docs/cli.md."""
    return "".join(_lines())


def _lines() -> Iterator[str]:
    yield START
    yield f"\n## train\n\n```text\n{TRAIN_HELP}```\n"
    parser = _parser([name for name in COMMANDS if name not in ("train", "torchrun", "mpi-agent")])
    for name, command in _below(parser):
        if name != "train":
            yield f"\n## toolkit {name}\n\n{_sentence(COMMANDS[name])}\n"
            yield AGENT if name == "mpi-agent" else _table(build_parser({}) if name == "torchrun" else command)
        for action, of in _below(command):
            yield f"\n### toolkit {name} {action}\n\n{_sentence(of.description or '')}\n{_table(of)}"


def _below(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yield the commands that *parser* has below it."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices.items()


def _table(parser: argparse.ArgumentParser) -> str:
    hidden = (argparse._HelpAction, argparse._SubParsersAction)
    actions = [
        action for action in parser._actions if not isinstance(action, hidden) and action.help is not argparse.SUPPRESS
    ]
    rows = [f"| {_words(action)} | {_cell(action.help or '')} |\n" for action in actions]
    return "".join(("\n| argument | meaning |\n|---|---|\n", *rows)) if rows else ""


def _words(action: argparse.Action) -> str:
    """Return "`-q`, `--quiet`", "`--hosts N`", or the name of a positional argument."""
    name = action.metavar or ("{" + ",".join(map(str, action.choices)) + "}" if action.choices else action.dest.upper())
    value = "" if action.nargs == 0 else f" {name}" if action.option_strings else str(name)
    return ", ".join(f"`{option}{value.replace('|', ' or ')}`" for option in action.option_strings or ("",))


def _cell(text: str) -> str:
    """Return *text* as a cell: whole sentences are not asked for, but no bar may end it."""
    return re.sub(r"(?<!\\)\|", r"\\|", text.replace("%%", "%"))


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith(("?", ".")) else ".")


def test_the_page_of_the_commands_is_what_their_parsers_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "python -m tests.project.test_cli_page"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
