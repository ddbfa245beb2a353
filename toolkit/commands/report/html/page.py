"""Makes the HTML page of a report: one file that opens without a network. The extra `report` has what it needs."""

import base64
import hashlib
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from toolkit.commands.report.model import Chart, HeatMap, Page
from toolkit.errors import UserError
from toolkit.records import encode

_HERE = Path(__file__).parent
# One scope, in this order: what a file uses stands before it, but for what it calls later.
_SCRIPTS = ("decode", "units", "theme", "csv", "group", "marks", "plot", "chart", "heatmap", "tables", "live", "start")
_STYLES = ("page", "blocks")
EXTRA = "pip install 'container-training-toolkit[report]'"


def render(page: Page) -> str:
    """Return *page* as one HTML file, scripts, styles and numbers in it.

    Raises:
        UserError: jinja2 or numpy is not installed.
    """
    check_installed()
    from toolkit.commands.report.html import blocks, quantities
    from toolkit.commands.report.html.packing import Store
    from toolkit.commands.report.html.templating import template

    store = Store()
    large = blocks.is_large(page)
    plots = [
        blocks.describe_plot(block, store, large=large)
        for block in blocks.iterate_blocks(page)
        if isinstance(block, Chart | HeatMap)
    ]
    structure = {"plots": plots, "live": page.live, "refresh_s": page.refresh_s}
    library, own_script = _read("uPlot.iife.min.js"), _own_script()
    return template("page.html").render(
        page=page,
        blocks=blocks,
        figures=quantities,
        large=large,
        structure=_json(structure),
        numbers=store.text(),
        library=library,
        licence=_read("uPlot-LICENSE"),
        script=own_script,
        style="\n".join((_read("uPlot.min.css"), *(_read(f"{name}.css") for name in _STYLES))),
        policy=_policy(library, own_script, live=page.live),
    )


def check_installed() -> None:
    """Raise UserError if jinja2 or numpy, which `render` needs, is not installed."""
    for name in ("jinja2", "numpy"):
        if name not in sys.modules and find_spec(name) is None:
            raise UserError(
                f"expected jinja2 and numpy, which write the HTML page, found no {name}",
                where="toolkit report",
                hint=f"Run {EXTRA}, or ask for --format text, markdown or json.",
            )


@cache
def _read(name: str) -> str:
    return (_HERE / "static" / name).read_text(encoding="utf-8")


@cache
def _own_script() -> str:
    return "(() => {\n" + "\n".join(_read(f"{name}.js") for name in _SCRIPTS) + "})();\n"


def _json(value: Any) -> str:
    """Return *value* as JSON that no text in it can end: every "<", ">" and "&" is escaped."""
    text = encode(value).decode("utf-8")
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _policy(*scripts: str, live: bool) -> str:
    """Return the Content-Security-Policy: these scripts and no other; no request, but a live page's for itself."""
    hashes = " ".join(f"'sha256-{_digest(script)}'" for script in scripts)
    rules = [
        "default-src 'none'",
        f"script-src {hashes}",
        "style-src 'unsafe-inline'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
    ]
    return "; ".join([*rules, "connect-src 'self'"] if live else rules)


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
