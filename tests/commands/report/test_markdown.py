"""A page as Markdown survives whatever a job printed."""

import re

from markdown_it import MarkdownIt

from tests.commands.report.pages import page
from toolkit.commands.report.markdown import write_markdown
from toolkit.commands.report.model import Lines, Words


def test_every_kind_of_block_becomes_markdown_that_a_forge_shows() -> None:
    html = MarkdownIt("commonmark").enable("table").render(write_markdown(page()))

    assert "<h1>digits: failed</h1>" in html
    assert "<strong>Cause:</strong> ValueError: loss is nan" in html
    assert "<strong>What to do:</strong> Lower the learning rate." in html
    assert re.search(r"<td>algo-1</td>\s*<td style=\"text-align:right\">12.5</td>", html)
    assert re.search(r"<td>rank 0</td>\s*(<td[^>]*>[\d.]+</td>\s*){4}", html)
    assert re.search(r"<td>training</td>\s*<td[^>]*>75</td>\s*<td>75.0%</td>", html)
    assert "``` &lt;b&gt;*bold*&lt;/b&gt;" in html


def test_what_a_script_said_is_never_markup() -> None:
    hostile = "<img src=x> *a* [b](c) `d` | # e\n- f"

    html = (
        MarkdownIt("commonmark")
        .enable("table")
        .render(write_markdown(page(Words(name="Cause", text=hostile), Words(text=hostile))))
    )

    assert "<img" not in html and "<a " not in html and "<li>" not in html
    assert "&lt;img src=x&gt; *a* [b](c) `d` | # e - f" in html


def test_a_long_log_is_cut_to_its_end_and_says_so() -> None:
    text = write_markdown(
        page(Words(text="x"), Lines(id="log", title="algo-1", lines=tuple(f"line {n}" for n in range(99))))
    )

    assert "algo-1 (here the last 30)" in text
    assert "line 98" in text and "line 68" not in text
