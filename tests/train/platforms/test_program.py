"""Which of several sources names the script, and the warning about the others."""

from pathlib import Path

import pytest

from toolkit.log import Log
from toolkit.train.platforms.program import choose_script

PLACES = ("TOOLKIT_PROGRAM", "job.toml", "SAGEMAKER_PROGRAM", "sagemaker_program")


@pytest.mark.parametrize(
    ("named", "found", "said"),
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
    named: tuple[str | None, ...],
    found: tuple[str, str],
    said: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert choose_script(zip(PLACES, named, strict=True), Path("/code"), Log()) == found

    place, script = found
    line = f"[toolkit] warning: {place} names the script, {script}, and wins over {said}\n" if said else ""
    assert capfd.readouterr().err == line
