"""Messages that docs/exit-codes.md and docs/failures.md quote are those that the code writes."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
# The fixed part of each message, as the page and as the code have it.
QUOTES = {
    "exit-codes.md": (
        "(not by the toolkit, and not for want of memory: the kernel counts no out-of-memory kill)",
        "without a word",
        "called sys.exit at ",
        "stopped by ",
        ", which holds ",
        "Correct the variable or unset it.",
        "Training was stopped",
        "Reporting training FAILURE",
    ),
    "failures.md": (
        "stopping this host's other ranks",
        "was healthy",
        "with the same traceback",
        "ended while others trained",
        " ended with 0, ",
        "the others lost it",
        "Give every rank the same number of steps, or let each wait for the others (a barrier) before it ends.",
        "lost another rank of the job",
        "while it was handling ",
        ", raised in ",
        "caused by",
        "raised while handling",
        "the command last said: ",
        "before that a process that",
        "ends as on Windows",
        "before that it printed a traceback and went",
        "Python was in ",
        ", called from ",
        "the build said last: ",
        "waiting for ",
        " in vain for ",
        "; stopping this host",
        "SIGKILL was needed (grace ",
        "A disk is full: keep fewer checkpoints, or give the job a larger volume.",
        "the job's status stays as it is",
    ),
}


@pytest.fixture(scope="module")
def literals() -> str:
    """Every text in the code, with a line each; the fixed parts of f-strings too."""
    trees = (ast.parse(path.read_text()) for path in ROOT.glob("toolkit/**/*.py"))
    nodes = (node for tree in trees for node in ast.walk(tree))
    return "\n".join(node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))


@pytest.mark.parametrize(("page", "quote"), [(page, quote) for page, quotes in QUOTES.items() for quote in quotes])
def test_a_message_that_a_page_quotes_is_one_that_the_code_writes(page: str, quote: str, literals: str) -> None:
    assert quote in (ROOT / "docs" / page).read_text()
    assert quote in literals
