"""The HTML page in a headless Chromium: what a person sees, reads, hears and saves."""

import csv
import io
import math
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

from tests.browser import PHONE, WIDE, Browser, needs_browser
from tests.commands.report.html import sample
from tests.commands.report.html.sample import START, failed
from toolkit.commands.report.html import quantities
from toolkit.commands.report.html.page import render
from toolkit.commands.report.model import Axis, Chart, HeatMap, Line, Page, Part, Phrase, Section, Shares

pytestmark = needs_browser
PAGE = failed()
BLOCKS = [block for section in PAGE.sections for block in section.blocks]
CHARTS = [block for block in BLOCKS if isinstance(block, Chart)]
MAPS = [block for block in BLOCKS if isinstance(block, HeatMap)]
# WCAG 2.2, relative luminance and contrast ratio; of every text on the page that is not hidden.
POOR_CONTRAST = """
  const parsed = (c) => { const v = c.match(/[\\d.]+/g).map(Number); return [...v.slice(0, 3), v[3] ?? 1]; };
  const linear = (v) => (v / 255 <= .04045 ? v / 255 / 12.92 : ((v / 255 + .055) / 1.055) ** 2.4);
  const lum = ([r, g, b]) => .2126 * linear(r) + .7152 * linear(g) + .0722 * linear(b);
  const ground = (e) => {
    for (; e; e = e.parentElement) {
      const colour = parsed(getComputedStyle(e).backgroundColor);
      if (colour[3] > .99) return colour;
    }
    return [255, 255, 255];
  };
  const poor = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const e = walk.currentNode.parentElement;
    const hidden = !e.checkVisibility() || e.closest('script, noscript, .unseen, .skip');
    if (hidden || !walk.currentNode.data.trim()) continue;
    const [a, b] = [lum(parsed(getComputedStyle(e).color)), lum(ground(e))];
    const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    if (ratio < 4.5) poor.push(`${ratio.toFixed(2)} ${e.className}: ${walk.currentNode.data.trim().slice(0, 40)}`);
  }
  return poor;
"""
# A chart whose canvas holds a few colours alone has axes and nothing else.
COLOURS = """
  const canvas = document.querySelector(`#${given[0]} canvas`);
  const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
  return new Set(new Uint32Array(data.buffer)).size;
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(render(PAGE), encoding="utf-8")
    return path


@pytest.fixture
def page(browser: Browser, path: Path) -> Browser:
    browser.open(path)
    return browser


def test_the_first_screen_says_status_cause_rank_and_advice(page: Browser) -> None:
    script = """
      const seen = (box) => box.height && box.top >= 0 && box.bottom <= innerHeight;
      const texts = [...document.querySelectorAll('.status, h1, .summary, dt, dd')];
      return texts.filter((e) => seen(e.getBoundingClientRect())).map((e) => e.innerText);
    """

    text = " ".join(page.value(script))

    for words in ("failed", "raised ValueError", "Cause", "step 1,204", "rank 1 (local rank 1)", "Lower the learning"):
        assert words in text


def test_the_page_asks_for_nothing_and_the_console_is_silent(page: Browser, path: Path) -> None:
    console, requests = page.logs()

    assert console == []
    assert [address for address in requests if address != path.as_uri() and not address.startswith("data:")] == []


def format_point(line: Line, index: int, divisor: float, label: str) -> str:
    """Return what the legend says of the point *index* of *line*."""
    mean = line.mean[index] / divisor
    if math.isnan(mean):
        return "–"
    ends = [quantities.number(bound[index] / divisor) for bound in (line.low, line.high) if bound]
    band = f" ({ends[0]} to {ends[1]})" if ends and line.low[index] != line.high[index] else ""
    return f"{quantities.number(mean)}{band}\u00a0{label}".rstrip("\u00a0")


@pytest.mark.parametrize("chart", CHARTS, ids=lambda chart: chart.id)
def test_a_chart_says_its_sources_values_at_ten_points(page: Browser, chart: Chart) -> None:
    top = max(abs(value) for line in chart.lines for value in (*line.mean, *line.high) if not math.isnan(value))
    unit = quantities.scale(chart.y.unit, top)
    script = """
      const name = (b) => b.querySelector('.name').textContent.replace(/ \\(furthest.*/, '');
      const buttons = [...document.querySelectorAll(`#${given[0]} .legend button`)];
      return given[1].map((x) => {
        toolkitPage.moveTo(given[0], x);
        return Object.fromEntries(buttons.map((b) => [name(b), b.querySelector('.value').textContent]));
      });
    """

    for line in (line for line in chart.lines if line.is_shown):
        points = sorted({round(tenth * (len(line.x) - 1) / 9) for tenth in range(10)})
        legends = page.value(script, chart.id, [line.x[index] for index in points])
        for point, legend in zip(points, legends, strict=True):
            assert legend[line.name] == format_point(line, point, unit.divisor, unit.label), (line.name, line.x[point])


@pytest.mark.parametrize("chart", MAPS, ids=lambda chart: chart.id)
def test_a_heat_map_says_its_sources_values_at_ten_points(page: Browser, chart: HeatMap) -> None:
    for index in range(10):
        row, column = index * 31 % len(chart.rows), index * 53 % len(chart.columns)
        script = """
          toolkitPage.plots.get(given[0]).row = given[1];
          toolkitPage.moveTo(given[0], given[2]);
          return document.querySelector(`#${given[0]} .tip`).innerText;
        """

        tip = page.value(script, chart.id, row, chart.columns[column])

        value = chart.values[row][column]
        value_text = "not measured" if value is None else f"{quantities.number(value)}\u00a0%"
        assert tip.splitlines()[0] == f"{chart.rows[row]}: {value_text}"


def rows_of(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text)))


@pytest.mark.parametrize("chart", CHARTS, ids=lambda chart: chart.id)
def test_the_csv_of_a_chart_has_every_value_exactly(page: Browser, chart: Chart) -> None:
    head, *rows = rows_of(page.value("return toolkitPage.csv(given[0]);", chart.id))
    unit = f" ({chart.y.unit})" if chart.y.unit else ""

    for line in chart.lines:
        for suffix, values in (("", line.mean), (" minimum", line.low), (" maximum", line.high)):
            if not values:
                continue
            column = head.index(f"{line.name}{suffix}{unit}")
            cells = {float(row[0]): row[column] for row in rows}
            expected = zip(line.x, values, strict=True)
            assert [cells[x] == "" if math.isnan(value) else float(cells[x]) == value for x, value in expected].count(
                False
            ) == 0


def test_a_click_on_csv_saves_a_table_with_its_exact_numbers(page: Browser) -> None:
    page.driver.find_element("css selector", "[data-csv-table=kernels-top]").click()
    saved = page.downloads / "kernels-top.csv"
    until = time.monotonic() + 60
    while not saved.exists():  # Chromium renames it once it is whole.
        assert time.monotonic() < until, "no file was saved"
        time.sleep(0.05)

    rows = rows_of(saved.read_bytes().decode("utf-8"))

    assert rows[0] == ["kernel", "calls", "time (s)", "memory (bytes)"]
    assert rows[2] == ["elementwise_kernel", "48000", "1.0625", "2684354560"]
    assert rows[3][0] == sample.HOSTILE and rows[3][2] == ""
    assert rows[4][0].startswith("'=cmd")  # No spreadsheet runs it.
    assert rows[-1][:2] == ["all", "49210"]


def test_keys_move_the_cursor_zoom_and_reset_and_the_live_region_says_so(page: Browser) -> None:
    from selenium.webdriver.common.keys import Keys

    canvas = page.driver.find_element("css selector", "#gpu-busy .canvas")
    spoken = "return document.getElementById('announcer').textContent;"
    span = "return toolkitPage.plots.get('memory').group.span();"
    page.value("document.querySelector('#gpu-busy .canvas').focus();")

    canvas.send_keys(Keys.HOME)
    assert page.value(spoken).startswith("2025-11-23 01:48:05: GPU 0 ")
    canvas.send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert page.value(spoken).startswith("2025-11-23 01:48:07: ")
    canvas.send_keys(Keys.SHIFT, Keys.ARROW_RIGHT)
    assert page.value(spoken).startswith("2025-11-23 01:48:17: ")
    canvas.send_keys(Keys.NULL, "+")
    low, high = page.value(span)  # The other charts of the group follow.
    assert high - low == pytest.approx(299.5, abs=1)
    canvas.send_keys(Keys.END)
    assert page.value(spoken).startswith("2025-11-23 01:58:04: ")
    assert page.value(span)[1] == pytest.approx(START + 605)  # The heat map's last column ends later.
    canvas.send_keys(Keys.ESCAPE)
    assert page.value(span) == [START, START + 600]
    assert "Shown: 2025-11-23 01:48:05" in page.value(spoken)


def test_arrow_keys_walk_through_the_rows_of_a_heat_map(page: Browser) -> None:
    from selenium.webdriver.common.keys import Keys

    canvas = page.driver.find_element("css selector", "#cores .canvas")

    canvas.send_keys(Keys.HOME, *[Keys.ARROW_DOWN] * 3)

    assert page.value("return document.getElementById('announcer').textContent;") == (
        "core 3, 2025-11-23 01:48:05: 100\u00a0%"
    )


def test_a_drag_zooms_all_charts_of_the_cursor_and_two_clicks_reset(page: Browser) -> None:
    from selenium.webdriver import ActionChains

    span = """
      const scales = ['gpu-busy', 'cores'].map((id) => toolkitPage.plots.get(id).u.scales.x);
      return scales.map((scale) => [scale.min, scale.max]);
    """
    over = page.driver.find_element("css selector", "#gpu-busy .u-over")
    page.value("document.getElementById('gpu-busy').scrollIntoView({ block: 'center', behavior: 'instant' });")

    ActionChains(page.driver).move_to_element(over).click_and_hold().move_by_offset(120, 0).release().perform()
    zoomed = page.value(span)
    ActionChains(page.driver).double_click(over).perform()

    assert zoomed[0] == zoomed[1] and 50 < zoomed[0][1] - zoomed[0][0] < 120
    assert page.value(span) == [[START, START + 600]] * 2


def test_a_screen_reader_finds_a_table_for_every_chart(page: Browser) -> None:
    script = """
      const tables = [...document.querySelectorAll('.summary-table table')];
      return tables.map((table) => [table.closest('.card').id, table.textContent]);
    """

    tables = dict(page.value(script))

    assert set(tables) == {chart.id for chart in CHARTS} | {chart.id for chart in MAPS}
    assert "busy (%)meanleastleast at" in tables["gpu-busy"]
    for text in ("GPU 2", "core 3100100", "2025-11-23"):
        assert text in tables["cores" if "core" in text else "gpu-busy"]


def test_a_click_on_a_heading_sorts_a_table(page: Browser) -> None:
    heading = page.driver.find_element("css selector", "#kernels-top th:nth-child(2) button")
    cells = "return [...document.querySelectorAll('#kernels-top tbody td:nth-child(2)')].map((c) => c.textContent);"

    heading.click()
    first = page.value(cells)
    heading.click()

    assert first == ["48,000", "1,200", "7", "3"]
    assert page.value(cells) == ["3", "7", "1,200", "48,000"]


def test_many_lines_show_median_and_outlier_and_the_legend_switches_lines(page: Browser) -> None:
    legend = "return [...document.querySelectorAll('#ranks .legend > button .name')].map((e) => e.textContent);"
    assert page.value(legend) == ["median of 16", "rank 5 (furthest from the median)"]
    state = """
      const pressed = document.querySelector('#loss .legend button').getAttribute('aria-pressed');
      return [pressed, toolkitPage.plots.get('loss').u.series[1].show];
    """

    page.driver.find_element("css selector", "#loss .legend button").click()

    assert page.value(state) == ["false", False]


def test_markup_in_a_log_line_is_shown_as_it_is(page: Browser) -> None:
    assert page.driver.title == "distill-digits-2025-11-23: failed"
    assert sample.HOSTILE in page.value("return document.getElementById('log-tail-text').textContent;")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_every_text_has_the_contrast_of_wcag_aa(page: Browser, dark: bool) -> None:
    with page.as_if(dark=dark):
        poor = page.value(POOR_CONTRAST)
        ground = page.value("return getComputedStyle(document.body).backgroundColor;")
        page.screenshot(f"report-{'dark' if dark else 'light'}")

    assert poor == []
    assert (ground < "rgb(128") == dark or ground.startswith("rgb(14,") == dark


def test_the_switch_chooses_the_colours_over_the_system(page: Browser) -> None:
    theme = "return document.documentElement.dataset.theme;"
    switch = page.driver.find_element("id", "theme")

    switch.click()
    switch.click()

    assert page.value(theme) == "dark"
    switch.click()
    assert page.value(theme) == "light"


def test_on_a_phone_nothing_is_wider_than_the_screen(page: Browser, path: Path) -> None:
    with page.as_if(width=PHONE):
        page.open(path)
        width = page.value("return document.documentElement.scrollWidth;")
        wide = page.value(
            """
            const boxes = [...document.querySelectorAll('main *')].filter((e) => !e.closest('.unseen, .scroll, pre'));
            const wide = boxes.filter((e) => e.checkVisibility() && e.getBoundingClientRect().right > innerWidth + 1);
            return wide.map((e) => e.className || e.localName);
            """
        )
        page.screenshot("report-phone")

    assert (width, wide) == (PHONE, [])


@pytest.mark.parametrize("chart", [*CHARTS, *MAPS], ids=lambda chart: chart.id)
def test_no_chart_is_empty_or_without_units(page: Browser, chart: Chart | HeatMap) -> None:
    labels = page.value("return toolkitPage.plots.get(given[0]).u.axes.map((axis) => axis.label ?? '');", chart.id)

    assert page.value(COLOURS, chart.id) > 20
    assert labels[0] and (isinstance(chart, HeatMap) or labels[1])


def test_print_shows_everything_in_light_colours(page: Browser) -> None:
    pdf = page.cdp("Page.printToPDF", printBackground=True)["data"]

    assert len(pdf) > 50_000
    assert page.value("return document.documentElement.dataset.theme;") == "light"


def short(kind: Literal["time", "elapsed"], start: float, number: int, *, folded: bool = False) -> Chart:
    """Return a chart of one second."""
    x = tuple(start + 0.1 * index for index in range(11))
    lines = (Line(name="rank 0", x=x, mean=tuple(float(index % 3) for index in range(11))),)
    axis = Axis(name="time", kind=kind)
    name = f"{kind}-{number}"
    return Chart(id=name, title=name, x=axis, y=Axis(name="y"), lines=lines, cursor="c", folded=folded)


@pytest.mark.parametrize("kind", ["time", "elapsed"])
def test_the_last_label_of_a_second_is_whole(
    browser: Browser, tmp_path: Path, kind: Literal["time", "elapsed"]
) -> None:
    section = Section(id="s", title="s", blocks=(short(kind, START if kind == "time" else 0.0, 0),))
    (tmp_path / "p.html").write_text(render(msgspec.structs.replace(PAGE, sections=(section,))), encoding="utf-8")

    for width in (WIDE, PHONE):
        with browser.as_if(width=width):
            browser.open(tmp_path / "p.html")
            ends, room = browser.value(
                """const { u } = [...toolkitPage.plots.values()][0], { ctx } = u, axis = u.axes[0];
                ctx.font = axis.font[0];
                const texts = axis._values.map((text, at) => [u.valToPos(axis._splits[at], "x", true), text]);
                const wide = (text) => Math.max(...text.split("\\n").map((line) => ctx.measureText(line).width));
                return [texts.map(([at, text]) => at + wide(text) / 2), ctx.canvas.width];"""
            )
            assert len(ends) > 1 and max(ends) <= room


def test_many_charts_are_folded_and_drawn_when_they_are_looked_at(browser: Browser, tmp_path: Path) -> None:
    blocks = (short("elapsed", 0.0, 0), *(short("elapsed", float(index), index, folded=True) for index in range(1, 60)))
    page = msgspec.structs.replace(PAGE, sections=(Section(id="s", title="s", blocks=blocks),))
    (tmp_path / "p.html").write_text(render(page), encoding="utf-8")
    browser.open(tmp_path / "p.html")
    drawn = "return toolkitPage.plots.size;"
    assert browser.value("return document.querySelector('.more > summary').innerText;") == "59 more charts"
    assert browser.value(drawn) == 1

    browser.value("document.querySelector('.more > summary').click();")
    browser.until(f"return {drawn[7:-1]} > 1;", "the first of them are drawn")

    assert browser.value(drawn) < 30
    browser.value("document.getElementById('elapsed-59').scrollIntoView({ behavior: 'instant' });")
    browser.until("return toolkitPage.plots.has('elapsed-59');", "the last one is drawn")
    assert browser.value(COLOURS, "elapsed-59") > 10
    assert browser.value("return toolkitPage.plots.get('elapsed-0').group.span()[1];") == 60
    browser.screenshot("folded")


class Server:
    """Serves a page on localhost, as `toolkit run --watch` does; tests exchange it."""

    def __init__(self) -> None:
        self.page = failed(live=True, refresh_s=0.05)
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = render(outer.page).encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/html; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()
        self.address = f"http://127.0.0.1:{self.server.server_port}/"

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


def changed(page: Page, summary: str, *, live: bool) -> Page:
    return msgspec.structs.replace(page, summary=summary, live=live, status="training" if live else "completed")


def test_a_live_page_shows_what_is_new_and_keeps_zoom_choice_and_scroll(browser: Browser, server: Server) -> None:
    browser.open(server.address)
    browser.value("toolkitPage.zoom('gpu-busy', given[0] + 100, given[0] + 200);", START)
    browser.value("document.querySelector('#loss .legend button').click();")
    browser.value("document.getElementById('gpu-busy-how').open = true; scrollTo({ top: 777, behavior: 'instant' });")

    server.page = changed(server.page, "Step 1,300.", live=True)
    browser.until("return document.querySelector('.summary').textContent === 'Step 1,300.';", "the new summary")

    assert browser.value("return [scrollY, toolkitPage.plots.get('memory').group.span()];") == [
        777,
        [START + 100, START + 200],
    ]
    assert browser.value("return toolkitPage.plots.get('loss').lines[0].state;") == "off"
    assert browser.value("return document.getElementById('gpu-busy-how').open;")
    server.page = changed(server.page, "All done.", live=False)
    browser.until("return document.querySelector('.summary').textContent === 'All done.';", "the end")
    assert browser.value("return document.getElementById('live').hidden;")
    assert browser.logs()[0] == []


def test_a_live_page_says_so_when_nobody_answers_any_more(browser: Browser) -> None:
    server = Server()
    browser.open(server.address)

    server.close()

    browser.until("return document.getElementById('live-text').textContent.startsWith('No answer');", "no answer")


def test_a_mean_of_step_times_counts_each_step_once(browser: Browser, tmp_path: Path) -> None:
    xs, took = (0.0, 1.0, 2.0, 12.0), (1.0, 1.0, 10.0, 1.0)
    chart = Chart(
        id="steps",
        title="Step time",
        x=Axis(name="time", kind="elapsed"),
        y=Axis(name="step time", unit="s"),
        lines=(Line(name="rank 0", x=xs, mean=took),),
        style="stepped",
    )
    section = Section(id="s", title="s", blocks=(chart,))
    (tmp_path / "p.html").write_text(render(msgspec.structs.replace(PAGE, sections=(section,))), encoding="utf-8")
    browser.open(tmp_path / "p.html")

    text = browser.value("return document.querySelector('#steps .legend .value').textContent;")

    assert text.replace("\u00a0", " ") == "mean 3.25 s"


def test_a_heat_map_has_colours_of_its_own_in_the_dark(page: Browser) -> None:
    script = "return getComputedStyle(document.querySelector('#cores .scale i')).backgroundImage;"
    light = page.value(script)
    with page.as_if(dark=True):
        page.until(f"{script.replace('return', 'const now =')} return now !== given[0];", "other colours", light)


def test_a_table_that_scrolls_says_so_and_another_one_does_not(page: Browser) -> None:
    said = "return [...document.querySelectorAll('.scrolls')].map((line) => line.closest('.card').id);"
    wide = """return [...document.querySelectorAll('.card .scroll')].filter(
      (box) => box.scrollWidth > box.clientWidth + 1 || box.scrollHeight > box.clientHeight + 1
    ).map((box) => box.closest('.card').id);"""

    with page.as_if(width=PHONE):
        page.until(f"return {said[7:-1]}.length > 0;", "a table says that it scrolls")
        assert page.value(said) == page.value(wide)


def test_the_headline_leads_to_its_chart_and_the_ledgers_bar_is_on_the_first_screen(
    browser: Browser, tmp_path: Path
) -> None:
    headline = (Phrase(text="41 steps/s", link="loss"), Phrase(text="; no finding"))
    money = Shares(id="ledger", title="Where", unit="s", parts=(Part(name="training", value=1.0),), total=1.0)
    sections = (*PAGE.sections, Section(id="where", title="Where", blocks=(money,)))
    whole = msgspec.structs.replace(PAGE, summary="41 steps/s; no finding", headline=headline, sections=sections)
    (tmp_path / "p.html").write_text(render(whole), encoding="utf-8")
    browser.open(tmp_path / "p.html")

    assert browser.value("return document.querySelector('.summary').textContent;") == whole.summary
    assert browser.value("return document.querySelector('.summary a').hash;") == "#loss"
    assert browser.value("return document.querySelector('.hero-bar').getBoundingClientRect().bottom;") < 900
