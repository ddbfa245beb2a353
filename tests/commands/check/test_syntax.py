import sys
from pathlib import Path

from toolkit.commands.check import syntax
from toolkit.commands.check.syntax import Error


def test_files_that_are_no_python_are_named_with_line_and_reason(tmp_path: Path) -> None:
    files = {
        "train.py": b"import os\nprint('a'\n",
        "lib/model.py": b"def f():\nreturn 1\n",
        "nul.py": b"x = 1\0\n",
        "latin.py": b"# -*- coding: latin-1 -*-\nx = '\xe9'\n",
        "escape.py": b"x = '\\d'\n",
        "wrong_encoding.py": b"x = '\xe9'\n",
        "bom.py": b"\xef\xbb\xbfx = 1\n",
        "notes.txt": b"print(\n",
        ".venv/lib/broken.py": b"print(\n",
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)

    errors = {error.name: error.text for error in syntax.errors(tmp_path)}

    assert set(errors) == {"train.py", "lib/model.py", "nul.py", "wrong_encoding.py"}
    assert errors["train.py"] == "line 2: '(' was never closed"
    assert errors["lib/model.py"].startswith("line 2: ")


def test_the_script_fails_the_check_and_other_files_are_a_warning() -> None:
    errors = [Error(name="train.py", text="line 1: x"), *(Error(name=f"{n}.py", text="line 2: y") for n in range(5))]

    of_script, others = syntax.check(errors, "train.py", sys.executable)
    (elsewhere,) = syntax.check(errors[:1], "train.py", "/opt/other/python")

    assert (of_script.status, of_script.found) == ("fail", "train.py: line 1: x")
    assert (others.status, others.found[-12:]) == ("warn", "; and 2 more")
    assert elsewhere.status == "warn"
    assert "/opt/other/python has another Python" in elsewhere.advice
