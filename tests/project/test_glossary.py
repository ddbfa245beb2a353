"""docs/glossary.md is sorted and names files that exist."""

import re
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[2]
GLOSSARY = ROOT / "docs/glossary.md"


def rows() -> list[tuple[str, str, str]]:
    lines = [line for line in GLOSSARY.read_text().splitlines() if line.startswith("| ")][1:]
    return [(term, meaning, where) for _, term, meaning, where, _ in (re.split(r" ?\| ?", line) for line in lines)]


def test_the_glossary_is_sorted_and_every_line_is_whole() -> None:
    found = rows()

    assert len(found) > 20
    assert all(term and meaning and where for term, meaning, where in found)
    assert [(one[0], other[0]) for one, other in pairwise(found) if one[0].lower() >= other[0].lower()] == []


def test_every_file_that_the_glossary_names_exists() -> None:
    paths = [path for _, _, where in rows() for path in re.findall(r"`([^`]+)`", where)]

    assert paths
    assert [path for path in paths if not (ROOT / "toolkit" / path).exists()] == []
