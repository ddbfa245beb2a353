import re
from typing import Any

import pytest

from toolkit.errors import ContractError
from toolkit.job.file.script_arguments import hyperparameters


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--epochs", "3"], {"epochs": "3"}),
        (["--lr=0.10", "--amp"], {"lr": "0.10", "amp": True}),
        (["--layers", "64", "32", "-x", "-5", "-y=-.5"], {"layers": ["64", "32"], "x": "-5", "y": "-.5"}),
        (["-n", "2", "--resume", "false", "--empty="], {"n": "2", "resume": "false", "empty": ""}),
        ([], {}),
    ],
)
def test_options_of_a_script_are_hyperparameters_as_they_were_typed(words: list[str], expected: dict[str, Any]) -> None:
    assert hyperparameters(words, "here") == expected


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["in.txt", "--epochs", "3"], "here: expected an option of the script, found 'in.txt'"),
        (["--xs", "1", "--xs", "2"], "here: expected each option once, found --xs again. Give its values together"),
        (["--=x"], "here: expected an option of the script, found '--=x'"),
        (["--a", "1"], "here: expected -a, found --a, which the script would get as -a"),
        (["-lr=3"], "here: expected --lr, found -lr, which the script would get as --lr"),
        (["---x"], "here: expected -x, found ---x"),
    ],
)
def test_words_that_cannot_be_hyperparameters_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(ContractError, match=re.escape(message)):
        hyperparameters(words, "here")


def test_a_style_of_the_jobs_own_decides_about_dashes() -> None:
    assert hyperparameters(["--n", "2"], "here", as_typed=False) == {"n": "2"}
