"""Measure the HTML page of a long job: 24 hours, 8 GPUs, 192 cores (made-up samples, as the monitor writes them).

    scripts/bench pages [--hours N] [--cores N] [--gpus N] [--keep FILE]

Prints how long the page takes to build (reading, sections, HTML) and its size; then, in headless Chromium
(scripts/beds/chromium), how long it takes from the navigation until every chart is drawn, and from a zoom of all charts
with the common cursor until the next frame. Each figure stands beside the most that it may be; exit code 1 if one is
more. Times are the median of several tries.
"""

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

from harness import parser, print_machine, print_table

LIMITS = {"built": 10.0, "size": 2.0, "drawn": 1000.0, "zoom": 100.0}
TRIES = 5
# From the zoom until the frame with it is on the screen: a task of its own runs right after the frame.
ZOOM = """
const began = performance.now();
toolkitPage.zoom(given[0], given[1], given[2]);
await new Promise((done) => requestAnimationFrame(() => {
  const channel = new MessageChannel();
  channel.port1.onmessage = done;
  channel.port2.postMessage(0);
}));
return performance.now() - began;
"""


def job(folder: Path, *, hours: float, cores: int, gpus: int) -> float:
    """Make the folder of a job that failed after *hours*; return its end, seconds since the epoch."""
    import msgspec

    from tests.series.made import START_S, record
    from toolkit.commands.simulate.report import moment
    from toolkit.job.report import HostReport, JobReport

    output = folder / "hosts" / "algo-1" / "opt" / "ml" / "output"
    record(output / "monitor" / "samples", hours=hours, cores=cores, gpus=gpus)
    end_s = START_S + hours * 3600
    cause = {
        "kind": "ExecuteUserScriptError",
        "rank": 0,
        "message": "ValueError: loss is nan (at train.py:88)",
        "failed_ns": int(end_s * 1e9) - 10**9,
    }
    outcome = {"status": "failed", "exit_code": 1, "cause_host": "algo-1", "cause": cause}
    (output / "outcome.json").write_text(json.dumps(outcome))
    report = JobReport(
        name="a-day",
        status="Failed",
        failed_host="algo-1",
        exit_code=1,
        hosts={"algo-1": HostReport(exit_code=1, status="failed")},
        start_time=moment(START_S),
        end_time=moment(end_s),
        training_seconds=hours * 3600,
        billable_seconds=hours * 3600,
    )
    (folder / "job.json").write_bytes(msgspec.json.encode(report))
    samples = [
        {"name": "loss", "value": 2 / (1 + at / 1e4), "time_s": START_S + at, "host": "algo-1", "rank": 0, "step": at}
        for at in range(0, int(hours * 3600), 10)
    ]
    (output / "metrics.jsonl").write_bytes(msgspec.json.Encoder().encode_lines(samples))
    return end_s


def build(folder: Path, now_s: float) -> tuple[str, dict[str, float]]:
    """Return the page of the job in *folder* and the seconds of each part."""
    from toolkit.commands import jobs
    from toolkit.commands.report.html.page import render
    from toolkit.commands.report.sections.page import build_page

    cpu_s, began_s = time.process_time(), time.monotonic()
    page = build_page(jobs.read(folder, now_s=now_s), now_s=now_s)
    built_s = time.monotonic()
    text = render(page)
    ended_s = time.monotonic()
    parts = {"sections": built_s - began_s, "html": ended_s - built_s, "cpu": time.process_time() - cpu_s}
    return text, {"built": ended_s - began_s, **parts}


def looked_at(path: Path) -> dict[str, float]:
    """Return what the browser takes, in milliseconds, and its heap in MB."""
    from tests.browser import Browser

    with tempfile.TemporaryDirectory() as scratch:
        browser = Browser(Path(scratch))
        try:
            drawn, zoomed = [], []
            for _ in range(TRIES):
                browser.open(path)
                drawn.append(float(browser.value("return document.documentElement.dataset.shownMs;")))
                groups = (
                    "return [...toolkitPage.plots.values()].map((plot) => [plot.spec.id, plot.group.plots.length]);"
                )
                charts = browser.value(groups)
                name = max(charts, key=lambda chart: chart[1])[0]
                low, high = browser.value("return toolkitPage.plots.get(given[0]).group.span();", name)
                for part in (0.25, 0.05, 0.15):
                    middle, half = (low + high) / 2, (high - low) * part
                    zoomed.append(browser.value(ZOOM, name, middle - half, middle + half))
            heap = browser.value("return performance.memory.usedJSHeapSize / 1e6;")
        finally:
            browser.close()
    return {"drawn": statistics.median(drawn), "zoom": statistics.median(zoomed), "heap": heap, "charts": len(charts)}


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--hours", type=float, default=24)
    options.add_argument("--cores", type=int, default=192)
    options.add_argument("--gpus", type=int, default=8)
    options.add_argument("--keep", type=Path, metavar="FILE", help="keep the page as this file")
    words = options.parse_args()
    print_machine(f"{words.hours:g} h, {words.cores} cores, {words.gpus} GPUs")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "job"
        end_s = job(folder, hours=words.hours, cores=words.cores, gpus=words.gpus)
        text, figures = build(folder, end_s + 60)
        path = (words.keep or Path(scratch) / "report.html").absolute()
        path.write_text(text, encoding="utf-8")
        figures |= {"size": path.stat().st_size / 1e6, **looked_at(path)}
    rows = (
        ("built", "built", "s", 2),
        ("its CPU", "cpu", "s", 2),
        ("its sections", "sections", "s", 2),
        ("its HTML", "html", "s", 2),
        ("size", "size", "MB", 2),
        (f"navigation until all {figures['charts']:.0f} charts are drawn", "drawn", "ms", 0),
        ("zoom of the charts with one cursor until it is shown", "zoom", "ms", 0),
        ("JavaScript heap", "heap", "MB", 0),
    )
    print_table(
        ("", "", "at most"),
        (
            (what, f"{figures[name]:.{digits}f} {unit}", f"{LIMITS[name]:g} {unit}" if name in LIMITS else "")
            for what, name, unit, digits in rows
        ),
    )
    return int(any(figures[name] > most for name, most in LIMITS.items()))


if __name__ == "__main__":
    sys.exit(main())
