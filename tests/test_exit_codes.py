"""The exit codes that docs/exit-codes.md promises are those of the code, each defined once."""

import ast
import re
import signal
from pathlib import Path

from toolkit import exit_codes

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/exit-codes.md").read_text(encoding="utf-8")
NAMED = {name: value for name, value in vars(exit_codes).items() if name.isupper() and not name.startswith("_")}
# A program of its own, without the toolkit, tells in its own way why it failed.
APART = ("rank/hook/",)


def test_every_code_has_a_row_in_the_docs() -> None:
    rows = re.findall(r"^\|[^|]+\|([^|]+)\|$", PAGE.partition("## Where it is said")[0], re.MULTILINE)
    documented = {int(number) for row in rows for number in re.findall(r"\b\d{2,3}\b", row)}

    # 127 is a rank's own, as in a shell.
    assert set(NAMED.values()) - {exit_codes.CANNOT_START} <= documented
    assert documented - set(NAMED.values()) == {
        14,  # Open MPI's for a rank that lost another
        *(exit_codes.of_signal(n) for n in (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT)),
        exit_codes.of_signal(signal.SIGALRM),
        128,
    }


def test_no_other_file_writes_one_of_the_numbers_where_an_exit_code_is_meant() -> None:
    wrong = []
    for file in sorted((ROOT / "toolkit").rglob("*.py")):
        place = file.relative_to(ROOT / "toolkit").as_posix()
        if place == "exit_codes.py" or place.startswith(APART):
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            meant: list[ast.expr] = []
            if isinstance(node, ast.keyword) and node.arg in ("code", "exit_code"):
                meant = [node.value]
            elif isinstance(node, ast.Assign) and any("CODE" in ast.unparse(target).upper() for target in node.targets):
                meant = list(node.value.elts) if isinstance(node.value, ast.Tuple) else [node.value]
            elif isinstance(node, ast.Return) and node.value is not None and isinstance(node.value, ast.Constant):
                meant = [node.value]
            elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("os._exit", "sys.exit"):
                meant = node.args
            wrong += [
                f"{place}:{constant.lineno}: {constant.value!r}"
                for constant in meant
                if isinstance(constant, ast.Constant) and constant.value in NAMED.values()
            ]

    assert wrong == []


def test_a_signal_and_its_exit_code_lead_to_each_other() -> None:
    assert exit_codes.of_signal(signal.SIGTERM) == exit_codes.STOPPED
    assert exit_codes.of_signal(signal.SIGINT) == exit_codes.INTERRUPTED
    assert exit_codes.signal_in(exit_codes.STOPPED) == signal.SIGTERM
    assert exit_codes.signal_in(exit_codes.MISCONFIGURED) < 0
