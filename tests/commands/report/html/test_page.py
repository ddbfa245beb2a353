"""The HTML page as text: whole, escaped, without a request. tests/commands/report/html/test_browser.py opens it."""

import hashlib
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

import toolkit.commands.report.html
from tests.commands.report.html.sample import HOSTILE, failed
from toolkit.commands.report.html.page import render
from toolkit.commands.report.model import Axis, Chart, HeatMap, Line, Page, Section, Shares, Table, Words
from toolkit.errors import UserError

STATIC = Path(toolkit.commands.report.html.__file__).parent / "static"
UPLOT = {  # Of npm's uplot-1.6.32.tgz, dist/.
    "uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
}


class Reader(HTMLParser):
    """Collects elements with their attributes, and the text of the page outside scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.elements[-1:] and self.elements[-1][0] not in ("script", "style"):
            self.words.append(data)


def page_of(*blocks: object) -> Page:
    section = Section(id="one", title="One", blocks=blocks)  # type: ignore[arg-type]
    return Page(title="t", status="ok", tone="plain", summary="s", sections=(section,), made_by="m", made_at_s=0.0)


@pytest.mark.parametrize(("name", "sha256"), UPLOT.items())
def test_uplot_is_as_its_authors_published_it(name: str, sha256: str) -> None:
    assert hashlib.sha256((STATIC / name).read_bytes()).hexdigest() == sha256


def test_the_page_says_outcome_cause_and_advice_first() -> None:
    text = " ".join(" ".join(Reader(render(failed())).words).split())

    order = [
        "failed",
        "Rank 1 on algo-1 raised",
        "Cause",
        "ValueError: loss is nan at step",
        "Lower the learning",
        "GPUs",
    ]
    places = [text.index(word, text.index("Skip to")) for word in order]
    assert places == sorted(places)


def test_no_element_loads_anything() -> None:
    page = Reader(render(failed()))

    loading = [element for element in page.elements if {"src", "srcset", "data", "action"} & set(element[1])]
    links = [attributes["href"] or "" for _, attributes in page.elements if "href" in attributes]
    assert loading == []
    assert [link for link in links if not link.startswith(("#", "data:,"))] == []


def test_the_policy_allows_requests_only_to_a_live_page_and_only_for_itself() -> None:
    def policy(page: Page) -> str:
        return next(a["content"] or "" for _, a in Reader(render(page)).elements if a.get("http-equiv"))

    assert "default-src 'none'" in policy(failed()) and "connect" not in policy(failed())
    assert "connect-src 'self'" in policy(failed(live=True))


def test_hostile_text_stays_text_wherever_it_stands() -> None:
    page = failed()
    hostile = Page(
        title=HOSTILE,
        status=HOSTILE,
        tone="bad",
        summary=HOSTILE,
        sections=page.sections,
        made_by=HOSTILE,
        made_at_s=0.0,
    )

    reader = Reader(render(hostile))

    assert [tag for tag, _ in reader.elements if tag == "img"] == []
    assert [tag for tag, _ in reader.elements].count("script") == 4
    assert "".join(reader.words).count("<b>bold</b>") >= 6


def test_ids_are_not_repeated() -> None:
    ids = [attributes["id"] for _, attributes in Reader(render(failed())).elements if "id" in attributes]

    assert sorted(ids, key=str) == sorted(set(ids), key=str)


@pytest.mark.parametrize(
    "block",
    [
        Chart(id="a", title="t", x=Axis(name="x"), y=Axis(name="y"), lines=()),
        Chart(id="a", title="t", x=Axis(name="x"), y=Axis(name="y"), lines=(Line(name="l", x=(), mean=()),)),
        Chart(
            id="a",
            title="t",
            x=Axis(name="x"),
            y=Axis(name="y"),
            lines=(Line(name="l", x=(1.0,), mean=(float("nan"),)),),
        ),
        HeatMap(id="a", title="t", x=Axis(name="x"), value=Axis(name="v"), rows=(), columns=(), values=(), top=0.0),
        Shares(id="a", title="t", unit="s", parts=(), total=0.0),
        Table(id="a", title="t", columns=(), rows=()),
        Words(text=""),
    ],
)
def test_a_block_without_anything_in_it_is_no_error(block: object) -> None:
    assert "</html>" in render(page_of(block))


def test_a_long_chart_is_rounded_and_the_page_says_so() -> None:
    def chart(points: int) -> Page:
        x = tuple(float(index) for index in range(points))
        line = Line(name="l", x=x, mean=tuple(value * 1.000001 for value in x))
        return page_of(Chart(id="a", title="t", x=Axis(name="x"), y=Axis(name="y"), lines=(line,)))

    assert "it rounds" in render(chart(40_000))
    assert "it rounds" not in render(chart(400))


def test_without_the_extra_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "jinja2", raising=False)
    monkeypatch.setattr("toolkit.commands.report.html.page.find_spec", lambda _name: None)

    with pytest.raises(UserError) as raised:
        render(failed())

    assert "found no jinja2" in str(raised.value) and "[report]" in str(raised.value)
