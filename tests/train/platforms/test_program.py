"""The first of several sources names the script, with a warning about the others."""

from pathlib import Path

import pytest

from toolkit.log import Log
from toolkit.train.platforms.program import choose_script

PLACES = ("TOOLKIT_PROGRAM", "job.toml", "SAGEMAKER_PROGRAM", "sagemaker_program")


@pytest.mark.parametrize(
    ("names", "expected", "message"),
    [
        ((None, None, None, None), ("", ""), ""),
        (("", None, "", "d.py"), ("sagemaker_program", "d.py"), ""),
        ((None, None, "c.py", "d.py"), ("SAGEMAKER_PROGRAM", "c.py"), "sagemaker_program=d.py"),
        ((None, "/code/b.py", "c.py", None), ("job.toml", "/code/b.py"), "SAGEMAKER_PROGRAM=c.py"),
        (("a.py", "b.py", "c.py", "d.py"), ("TOOLKIT_PROGRAM", "a.py"),
         "job.toml=b.py and SAGEMAKER_PROGRAM=c.py and sagemaker_program=d.py"),
        (("a.py", None, "a.py", "./a.py"), ("TOOLKIT_PROGRAM", "a.py"), ""),
        (("a.py", "/code/a.py", None, "b/a.py"), ("TOOLKIT_PROGRAM", "a.py"), "sagemaker_program=b/a.py"),
    ],
)  # fmt: skip
def test_the_first_place_wins_and_a_line_names_those_that_say_something_else(
    names: tuple[str | None, ...],
    expected: tuple[str, str],
    message: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert choose_script(zip(PLACES, names, strict=True), Path("/code"), Log()) == expected

    place, script = expected
    line = f"[toolkit] warning: {place} names the script, {script}, and wins over {message}\n" if message else ""
    assert capfd.readouterr().err == line
