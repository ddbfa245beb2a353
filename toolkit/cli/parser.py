"""The parser of `toolkit`'s commands: argparse, whose errors also list the choices and suggest what the user may mean.

argparse itself suggests only since Python 3.14 (suggest_on_error), and only for choices. This parser supports 3.10 and
newer, and options too.
"""

import argparse
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NoReturn

from toolkit.errors import UserError, did_you_mean
from toolkit.masking.names import is_secret
from toolkit.masking.text import MASK

# Other tools' names for the same options.
ELSEWHERE = {
    "--nnodes": "--hosts",  # torchrun
    "--nodes": "--hosts",
    "--num-nodes": "--hosts",
    "--job-name": "--name",
    "--output-dir": "--job-dir",
    "--env-file": "--env",
    "--volume": "--channel",
    "--data": "--channel",
    "--detached": "--detach",
    "--overwrite": "--replace",
    "--force": "--replace",
    "--nproc-per-node": "--processes-per-host",
    "--instance-count": "--hosts",  # SageMaker's SDK
    "--entry-point": "SCRIPT",
    "--source-dir": "--source",
    "--hyperparameters": "--hyperparameter",
    "--input": "--channel",
    "--environment": "--env",
    "--output": "--job-dir",
    "--timeout": "--max-run",
    "--use-spot-instances": "--interrupt",
    "--checkpoint-s3-uri": "--checkpoints",
    "--model-uri": "--channel",
    "--shm": "--shm-size",
}


class Parser(argparse.ArgumentParser):
    """A parser whose errors are short: what is wrong, what may be meant, where the help is.

    The exit code is 78, as after every error of a user: argparse's 2 may be a script's own.
    """

    def __init__(self, *arguments: Any, **more: Any) -> None:
        """As argparse's, but without abbreviations: `--n 5`, meant for a script, must not become `--name 5`."""
        super().__init__(*arguments, **{**more, "allow_abbrev": False})

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """As argparse's, but unknown arguments are an error here, so that the message names the command."""
        parsed, left = super().parse_known_args(args, namespace)
        if left:
            self.error(self._unknown(left[0], self._of_a_script(left)))
        return parsed, []

    def _of_a_script(self, left: Sequence[str]) -> str:
        """Return advice on how to pass the arguments *left* to the script, if the command takes hyperparameters."""
        if not any("--hyperparameter" in action.option_strings for action in self._actions):
            return ""
        options = " ".join(f"--hyperparameter {shlex.quote(pair)}" for pair in _pairs(left))
        return f"\nTo give it to the script: {options}" if options else ""

    def error(self, message: str) -> NoReturn:
        """Print *message* and where the help is, and exit."""
        print(f"{self.prog}: error: {message}\nFor help: {self.prog} --help", file=sys.stderr)
        sys.exit(UserError.exit_code)

    def _unknown(self, word: str, of_a_script: str) -> str:
        if not word.startswith("-") or word == "-":
            return f"unexpected argument {word!r}{of_a_script}"
        option = word.partition("=")[0]
        options = [option for action in self._actions for option in action.option_strings if option.startswith("--")]
        meant = ELSEWHERE.get(option.replace("_", "-"), "")
        if meant.startswith("--") and meant not in options:
            meant = ""
        hint = f"Did you mean {meant}?" if meant else did_you_mean(option, options)
        if not hint and not of_a_script:
            hint = f"Options: {', '.join(options)}"
        return f"unknown option {option}. {hint}".rstrip(". ") + of_a_script


def _pairs(words: Sequence[str]) -> Iterator[str]:
    """Yield NAME=VALUE for options in the forms that scripts take: --epochs 5, --lr=0.1, --amp, epochs=5."""
    for index, word in enumerate(words):
        name, equals, value = word.lstrip("-").partition("=")
        behind = words[index + 1] if index + 1 < len(words) else "-"
        if not name or (not word.startswith("-") and not equals):
            continue
        if not equals:
            value = "true" if behind.startswith("-") else behind
        yield f"{name}={MASK if is_secret(name, value) else value}"


def one_of(choices: Iterable[str]) -> Callable[[str], str]:
    """Return the type of an argument that is one of *choices*."""
    words = tuple(choices)

    def chosen(word: str) -> str:
        if word not in words:
            hint = did_you_mean(word, words)
            raise argparse.ArgumentTypeError(f"expected one of {', '.join(words)}, found {word!r}. {hint}".rstrip())
        return word

    return chosen


def whole(word: str) -> int:
    """The type of an argument that is a whole number; the command checks its range."""
    try:
        return int(word)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a whole number, found {word!r}") from None
