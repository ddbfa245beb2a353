"""docs/glossary.md is sorted and names files that exist."""

import re
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[2]
GLOSSARY = ROOT / "docs/glossary.md"


def rows() -> list[tuple[str, str, str]]:
    lines = [line for line in GLOSSARY.read_text().splitlines() if line.startswith("| ")][1:]
    return [(term, meaning, file) for _, term, meaning, file, _ in (re.split(r" ?\| ?", line) for line in lines)]


def test_the_glossary_is_sorted_and_every_line_is_whole() -> None:
    terms = rows()

    assert len(terms) > 20
    assert all(term and meaning and file for term, meaning, file in terms)
    assert [(term[0], other[0]) for term, other in pairwise(terms) if term[0].lower() >= other[0].lower()] == []


def test_every_file_that_the_glossary_names_exists() -> None:
    paths = [path for _, _, file in rows() for path in re.findall(r"`([^`]+)`", file)]

    assert paths
    assert [path for path in paths if not (ROOT / "toolkit" / path).exists()] == []
