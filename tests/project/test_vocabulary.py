"""docs/glossary.md is sorted and names files that exist; terms that it replaced do not come back."""

import re
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[2]
GLOSSARY = ROOT / "docs/glossary.md"
# Retired words, and what replaced them. Ordinary English words (`standing`, `round(`, `tap water`) are not listed.
RETIRED = {
    r"\b[Ss]lates?\b|SLATE\b": "status page",
    r"\bstandin\b|\bStandIn\b|STANDIN\b": "rank shim",
    r"\bTaps?\b|\btaps\b": "line monitor",
    r"\bPaces\b|\bpaces\b": "step times",
    r"\bAccord\b": "coordinator",
    r"\bRounds\b": "attempt",
    r"\bis_echo\b|\bECHOES\b|\bechoes\b": "collateral failure",
    r"\bcompanions?\b": "sidecar",
    r"\b[Rr]oll call\b": "membership",
    r"\b[Aa]rena\b": "shared-memory group",
    r"\bRail\b": "TCP group",
    r"\bPassage\b": "hierarchical all-reduce",
    r"\b[Tt]ally\b": "collective statistics",
    r"\bCourse\b": "lifecycle",
    r"\bHostStanding\b": "host progress",
    r"\b[Pp]layed\b": "simulated",
    r"\bpapers\b": "documents",
    r"\b(?:Channel|Group)Words\b|\bcheck_words\b": "options",
    r"\bRoom\(|\bclass Room\b": "simulation",
    r"\bWishes\b|\bSAME_WISH_S\b": "stop request",
    r"\bclass Standing\b": "state of a rule",
    r"\bsupervise/stall\b|\bsupervise\.stall\b": "hang",
}


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


def test_no_retired_word_comes_back() -> None:
    pages = [*ROOT.glob("toolkit/**/*.py"), *ROOT.glob("docs/**/*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    found = [
        f"{path.relative_to(ROOT)}: {match[0]!r} is now {better!r}"
        for path in pages
        for pattern, better in RETIRED.items()
        for match in re.finditer(pattern, path.read_text())
    ]

    assert found == []
