"""Every section of a page, from the files of a job whose monitor was on: two hosts, the second slow, then failing."""

import fcntl
import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.commands.jobs.folders import START_S, failed, report, sample, simulated
from tests.commands.report.test_kernels import put
from tests.series.test_debugger import REAL
from toolkit.collectives.comparison import CallPlace, GroupComparison
from toolkit.commands import jobs
from toolkit.commands.jobs.ending import DEBUGGER_ALONE
from toolkit.commands.report.html.blocks import COLOURS, shares
from toolkit.commands.report.markdown import write_markdown
from toolkit.commands.report.model import Block, Chart, HeatMap, Line, Lines, Page, Part, Shares, Table, Words
from toolkit.commands.report.sections.ledger import NAMES
from toolkit.commands.report.sections.lines import label_limit
from toolkit.commands.report.sections.outcome import choose_thread
from toolkit.commands.report.sections.page import SECTIONS, build_page
from toolkit.commands.report.sections.where import TITLES, UNEXPLAINED
from toolkit.commands.report.text import TextWriter
from toolkit.diagnosis.slow_rank import HEALTHY
from toolkit.job.cause import Cause
from toolkit.job.outcome import Exit, Outcome
from toolkit.job.report import HostReport, Interruption
from toolkit.series import findings, sample_writer, step_records
from toolkit.series.column import SampleColumn
from toolkit.series.finding import Finding, Number

COLUMNS = {
    "cpu/all/used_percent": "percent",
    "cpu/core0/used_percent": "percent",
    "cpu/core1/used_percent": "percent",
    "memory/container/used_bytes": "bytes",
    "memory/container/limit_bytes": "bytes",
    "gpu/0/used_percent": "percent",
    "rank/0/memory_bytes": "bytes",
}
LIMIT = 8 << 30
FOUND = Finding(
    rule="CPUBottleneck",
    text="GPUs waited for the CPU in 12 % of the samples.",
    start_s=START_S + 10,
    end_s=START_S + 70,
    subject="cpu",
    host="algo-1",
    numbers=(Number(name="share", value=12.0, unit="percent", limit=10.0, formula="samples with both / all samples"),),
    refuted_by="GPUs above 70 % while cores are busy.",
    change="Raise num_workers to 4.",
    lost_s=40.0,
    live=True,
)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Page:
    return simulate_page(tmp_path_factory.mktemp("job") / "job")


LAYERS = [f"layer{n}.norm" for n in range(39)]


def simulate_page(job_dir: Path, seconds: int = 200) -> Page:
    """Write a job that fails 190 s after its start and return its page."""
    at_ns = int((START_S + seconds - 10) * 1e9)
    outcome = failed("algo-2")
    outcome = msgspec.structs.replace(outcome, cause=msgspec.structs.replace(outcome.cause, failed_ns=at_ns))
    job_report = report(
        start_time="2026-11-18T11:06:40.000Z",
        end_time="2026-11-18T11:10:00.000Z",
        training_seconds=float(seconds),
        billable_seconds=2.0 * seconds,
    )
    simulated(job_dir, job_report, {"algo-1": outcome, "algo-2": outcome}, "step 1\nValueError: loss is nan\n")
    for rank, host in enumerate(("algo-1", "algo-2")):
        output = job_dir / "hosts" / host / "opt" / "ml" / "output"
        _samples(output / "monitor", seconds)
        step_records.StepWriter(output / "monitor" / "steps").add(_steps(rank, seconds))
        rows = (sample("loss", 3.0 / (1 + n), n, host, rank=rank, step=n) for n in range(100))
        (output / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    findings.append(job_dir / "hosts/algo-1/opt/ml/output/monitor/findings.jsonl", FOUND)
    return build_page(jobs.read(job_dir), now_s=START_S + 1000, price=36.0)


def _samples(monitor: Path, seconds: int) -> None:
    writer = sample_writer.SampleWriter(
        monitor / "samples", [SampleColumn(name=name, unit=unit) for name, unit in COLUMNS.items()]
    )
    for number in range(2 * seconds):
        share = number / (2 * seconds)
        busy = 97.0 if number == 101 else 50.0
        writer.add(START_S + number / 2, [busy, busy, 10.0, share * LIMIT, LIMIT, 100 * share, share * LIMIT])
    writer.close()


def _steps(rank: int, seconds: int) -> list[step_records.StepRecord]:
    """Return steps of 1 s from 20 s after the start. Rank 1 takes 0.5 s more in forward, for which rank 0 waits; step
    50 takes 2 s more."""
    records: list[step_records.StepRecord] = []
    at_s = START_S + 20
    for number in range(1, 1000):
        late = 2.0 if number == 50 else 0.0
        saving = 0.25 if number == 100 else None
        at_s += 1.0 + late + (saving or 0.0)
        if at_s > START_S + seconds - 10:
            return records
        records.append(
            step_records.StepRecord(
                rank=rank,
                step=number,
                end_s=at_s,
                step_s=1.0 + late + (saving or 0.0),
                data_s=0.1 + late,
                forward_s=0.2 + 0.5 * rank,
                backward_s=0.6 - 0.5 * rank,
                optimizer_s=0.05,
                checkpoint_s=saving,
            )
        )
    return records


def block(page: Page, name: str) -> Any:
    return next(block for section in page.sections for block in section.blocks if getattr(block, "id", "") == name)


def words(page: Page, section: str) -> list[str]:
    return [
        block.text for block in next(s for s in page.sections if s.id == section).blocks if isinstance(block, Words)
    ]


def sections(page: Page) -> dict[str, tuple[Block, ...]]:
    return {section.id: section.blocks for section in page.sections}


def texts_named(page: Page, name: str) -> list[str]:
    """Return the texts of the facts *name* of the findings."""
    return [block.text for block in sections(page)["findings"] if isinstance(block, Words) and block.name == name]


def test_the_sections_come_in_their_order(page: Page) -> None:
    order = ["outcome", "last-minutes", "where-time-went", "findings", "metrics", "steps", "system", "timeline", "log"]

    ids = [section.id for section in page.sections]
    assert [id for id in ids if id in order] == order
    assert ids == [id for id, _, _ in SECTIONS if id in ids]
    assert "modelparallel" not in [section.id for section in page.sections]  # This job had one device a model.


def test_every_block_has_an_id_of_its_own(page: Page) -> None:
    ids = [block.id for section in page.sections for block in section.blocks if hasattr(block, "id")]

    assert len(ids) == len(set(ids))
    assert not {section.id for section in page.sections} & set(ids)


def test_the_last_two_minutes_show_cause_memory_gpus_and_steps_in_full_on_one_cursor(page: Page) -> None:
    section = next(block for block in page.sections if block.id == "last-minutes")
    charts = [block for block in section.blocks if isinstance(block, Chart)]

    assert words(page, "last-minutes")[0] == "rank 1 of host algo-2: ValueError: loss is nan (at train.py:5 in step)"
    assert {block.cursor for block in charts} == {"last-minutes"}
    assert [block.id for block in charts] == ["last-memory", "last-gpus", "last-cpu", "last-steps"]
    memory = block(page, "last-memory").lines
    assert [line.name for line in memory] == ["algo-1 used", "algo-1 limit", "algo-2 used", "algo-2 limit"]
    assert memory[0].x[0] >= START_S + 70 and memory[0].x[-1] <= START_S + 200
    raw = [x for x in memory[0].x if x > START_S + 145]
    assert len(raw) >= 2 * 50, "the last minute has every sample"
    assert [mark.start for mark in charts[0].marks] == [START_S + 190]
    log = block(page, "last-lines")
    assert isinstance(log, Lines) and log.title == "The last lines of algo-2" and log.lines[-1].endswith("loss is nan")
    assert any(
        text.startswith("Host algo-1 used 7.") and "of its 8.00 GiB" in text for text in words(page, "last-minutes")
    )


def test_the_ledger_adds_up_to_the_billable_seconds_and_to_the_money(page: Page) -> None:
    ledger = block(page, "ledger")
    money = block(page, "money")

    assert isinstance(ledger, Shares) and ledger.total == 400.0
    assert sum(part.value for part in ledger.parts) == pytest.approx(400.0, abs=1e-6)
    parts = {part.name: part.value for part in ledger.parts}
    assert parts["start-up"] == pytest.approx(40.0, abs=0.01)
    assert parts["idle after the failure"] == pytest.approx(20.0, abs=0.01)
    assert parts["checkpoints"] == pytest.approx(0.5, abs=0.01)
    assert parts["straggler wait"] == pytest.approx(0.5 * 99, abs=0.01)
    assert all(part.formula for part in ledger.parts)
    assert isinstance(money, Table) and money.total == ("total", 400.0, 100.0, 4.0)


def test_a_finding_has_its_numbers_its_window_what_would_refute_it_and_the_change(page: Page) -> None:
    blocks = next(block for block in page.sections if block.id == "findings").blocks
    by_rules = {block.name for block in blocks if isinstance(block, Words)}
    assert "MemoryLimit (memory, hosts algo-1, algo-2)" in by_rules, "from the files of both hosts, as one"
    blocks = blocks[
        next(n for n, block in enumerate(blocks) if getattr(block, "name", "").startswith("CPUBottleneck")) :
    ]

    assert isinstance(blocks[0], Words) and blocks[0].name == "CPUBottleneck (cpu, host algo-1)"
    assert "for 1 min 00 s (10.0 s after the start); found while the job ran" in blocks[0].text
    assert blocks[0].advice == "Raise num_workers to 4."
    assert isinstance(blocks[1], Words) and blocks[1].text == "GPUs above 70 % while cores are busy."
    assert isinstance(blocks[2], Table)
    assert blocks[2].rows == (("share", "12 %", "10 %", "samples with both / all samples"),)
    assert "This held for 1 min, 30 % of the job, and" in blocks[0].text


def test_a_finding_of_several_hosts_is_one_with_the_numbers_of_all(page: Page) -> None:
    blocks = sections(page)["findings"]
    index = next(n for n, block in enumerate(blocks) if getattr(block, "name", "").startswith("MemoryLimit"))
    (note,) = [block.text for block in blocks[index : index + 3] if isinstance(block, Words) and block.name == "Note"]
    table = next(block for block in blocks[index:] if isinstance(block, Table))

    assert note.startswith("The sentence is that of algo-1; the table has the numbers of all these hosts.")
    assert [column.name for column in table.columns[:4]] == ["number", "value", "least", "greatest"]
    rows = {row[0]: row[1:] for row in table.rows}
    assert all(str(end).endswith(" MB/s") for end in rows["slope"][:3])
    assert all(str(end).endswith(" GiB") for end in rows["used"][:3])
    assert [mark.text for mark in block(page, "algo-1-cpu").marks if "rises" in mark.text] != []
    events = [row for row in block(page, "events").rows if "MemoryLimit" in row[3]]
    assert [row[2:] for row in events] == [("", "finding: MemoryLimit (memory, hosts algo-1, algo-2)")]


def test_a_failed_installation_is_start_up(tmp_path: Path) -> None:
    """The job ran for 12.5 s; pip began after one, and failed after eleven."""
    began_ns, ended_ns = (int((START_S + seconds) * 1e9) for seconds in (1, 11))
    pip = Exit(process="pip", pid=7, started_ns=began_ns, ended_ns=ended_ns, code=1)
    cause = Cause(message="no such package", failed_ns=ended_ns)
    outcome = Outcome(status="failed", exit_code=1, exits=(pip,), cause=cause)
    simulated(tmp_path, report(exit_code=1), {"algo-1": outcome, "algo-2": outcome}, "installs\n")

    page = build_page(jobs.read(tmp_path), now_s=START_S + 1000)

    (ledger,) = (block for section in page.sections for block in section.blocks if isinstance(block, Shares))
    parts = {part.name: part.value for part in ledger.parts if part.value > 0.01}
    assert parts == pytest.approx({"start-up": 22.0, "idle after the failure": 3.0}, abs=0.01)
    assert not any("unexplained" in text for text in words(page, "where-time-went"))


def test_no_two_parts_of_the_time_look_alike() -> None:
    parts = [Part(name=title, value=1.0, tone=tone) for title, tone, _ in TITLES.values()]
    parts.append(Part(name=UNEXPLAINED, value=1.0))
    ledger = Shares(id="ledger", title="Where the time went", unit="s", parts=tuple(parts), total=float(len(parts)))

    looks = {
        (index % COLOURS if share["part"].tone == "plain" else share["part"].tone, share["again"])
        for index, share in enumerate(shares(ledger))
    }

    assert len(looks) == len(NAMES) + 1


def test_the_ledger_has_no_rows_of_parts_that_took_no_time(page: Page) -> None:
    (ledger,) = (block for section in page.sections for block in section.blocks if isinstance(block, Shares))

    assert all(part.value > 0 for part in ledger.parts)
    assert "No time went into: " in ledger.note and "garbage collection" in ledger.note


def test_a_slow_rank_alone_on_its_host_says_why_it_has_no_traces(page: Page) -> None:
    (explanation,) = texts_named(page, "Traces")

    assert explanation.startswith(
        "None: rank 1 runs on algo-2, and rank 0 on algo-1, and no monitor found it while the job"
    )
    assert 'TOOLKIT_PROFILE="steps 10-20"' in explanation


def test_a_slow_rank_is_compared_by_what_the_job_traced_anyway(tmp_path: Path) -> None:
    simulate_page(tmp_path / "job", 60)
    for rank, host in enumerate(("algo-1", "algo-2")):
        put(tmp_path / "job/hosts" / host / "opt/ml/output", "steps-10-11", rank, late=4000 * rank)

    page = build_page(jobs.read(tmp_path / "job"), now_s=START_S)

    (table,) = [block for block in sections(page)["findings"] if getattr(block, "id", "").endswith("-difference")]
    assert isinstance(table, Table) and table.title == "What rank 1 does more than rank 0, a step (steps-10-11)"
    assert table.rows[0][:2] == pytest.approx(("aten::mm", 4.0)) or table.rows[1][:2] == ("aten::mm", 4.0)
    assert texts_named(page, "Traces") == []


def test_a_trace_that_a_slow_rank_was_asked_for_stands_with_the_finding_and_only_there(tmp_path: Path) -> None:
    simulate_page(tmp_path / "job", 60)
    output = tmp_path / "job/hosts/algo-2/opt/ml/output"
    slow = msgspec.structs.replace(
        FOUND, rule="SlowRank", subject="rank", host="algo-2", rank=1, numbers=(Number(name=HEALTHY, value=2),)
    )
    findings.append(output / "monitor/findings.jsonl", slow)
    without = build_page(jobs.read(tmp_path / "job"), now_s=START_S)
    for rank in (1, 2):
        put(output, "steps-10-11", rank, request=1, late=4000 * (rank == 1))

    page = build_page(jobs.read(tmp_path / "job"), now_s=START_S)

    assert any("the monitor asked rank 1 and a healthy rank" in text for text in texts_named(without, "Traces"))
    tables = {name: [block.title for block in of if isinstance(block, Table)] for name, of in sections(page).items()}
    title = "What rank 1 does more than rank 2, a step (steps-10-11)"
    assert title in tables["findings"]
    assert title not in tables["kernels"]


def test_steps_have_a_table_a_distribution_outliers_and_a_heat_map_of_each_ranks_own_time(page: Page) -> None:
    heat = block(page, "steps-by-rank")
    table = block(page, "step-times")
    outliers = block(page, "step-outliers")
    distribution = block(page, "step-distribution")

    assert table.rows[0][:3] == (0, "algo-1", len(_steps(0, 200)))
    assert table.rows[0][3] == pytest.approx(1.0)
    assert sum(seconds or 0.0 for seconds in table.rows[0][7:]) == pytest.approx(table.rows[0][6]), "the parts add up"
    assert [row[:4] for row in outliers.rows] == [(50, "2 of 2", "rank 1", "algo-2")], "one row for a step"
    assert outliers.rows[0][-1].startswith("data wait")
    assert sum(distribution.lines[0].mean) == 2 * len(_steps(0, 200))
    assert isinstance(heat, HeatMap) and heat.rows == ("rank 0", "rank 1")
    assert heat.values[0][9] == pytest.approx(0.5 / 0.75) and heat.values[1][9] == pytest.approx(1.0 / 0.75)
    assert heat.values[1][99] == pytest.approx(1.0 / 0.75), "a checkpoint is no one's own time"
    assert heat.columns[0] == 1.0


def test_a_step_is_drawn_from_its_begin_for_as_long_as_it_took(page: Page) -> None:
    chart = block(page, "step-time")

    assert chart.style == "stepped"
    line = chart.lines[0]
    assert line.x[:2] == pytest.approx((20.0, 21.0)) and line.mean[49] == pytest.approx(3.0)
    assert line.x[50] - line.x[49] == pytest.approx(3.0)


def test_a_finding_marks_the_charts_of_its_host_and_of_what_it_is_about_alone(page: Page) -> None:
    def texts(name: str) -> list[str]:
        return [mark.text.partition(":")[0] for mark in block(page, name).marks]

    assert "CPUBottleneck" in texts("algo-1-cpu")
    assert "CPUBottleneck" not in texts("algo-2-cpu")
    assert "SlowRank" in texts("step-time") and "SlowRank" not in texts("algo-1-cpu") + texts("algo-2-cpu")
    assert texts("running-ranks") == ["failure"]


def test_the_system_has_lines_and_one_heat_map_of_cores_and_gpus_for_each_host(page: Page) -> None:
    cpu = block(page, "algo-1-cpu")
    heat = block(page, "algo-1-heat")

    assert max(cpu.lines[0].high) == pytest.approx(97.0), "a peak of one sample stays"
    assert (cpu.y.unit, cpu.y.low, cpu.y.high) == ("percent", 0.0, 100.0)
    assert heat.rows == ("core 0", "core 1", "GPU 0") and heat.top == 100.0
    assert heat.values[1][0] == pytest.approx(10.0)
    assert {line.name for line in block(page, "algo-2-memory").lines} == {"used", "limit"}
    assert block(page, "algo-1-rank-memory").lines[0].name == "rank 0"


def test_of_many_metrics_the_first_are_shown_and_the_others_folded(tmp_path: Path) -> None:
    simulate_page(tmp_path / "job", 30)
    names = [*LAYERS, "val_accuracy", "odd", "layer39.norm"]
    rows = [sample(name, "NaN" if name in ("odd", "layer39.norm") else 1.0, 1, "algo-1") for name in names]
    path = tmp_path / "job/hosts/algo-1/opt/ml/output/metrics.jsonl"
    path.write_text(path.read_text() + "".join(json.dumps(row) + "\n" for row in rows))

    page = build_page(jobs.read(tmp_path / "job"), now_s=START_S)

    charts = [block for block in sections(page)["metrics"] if isinstance(block, Chart)]
    assert [block.title for block in charts[:6]] == ["loss", "val_accuracy", "layer39.norm", "odd", *LAYERS[:2]]
    assert [block.folded for block in charts] == [False] * 12 + [True] * 31
    assert [block.title for block in charts[12:14]] == LAYERS[8:10]
    for text in (TextWriter(width=100).page(page), write_markdown(page)):
        assert "31 more charts are not shown here (layer8.norm, layer9.norm," in text.replace("\n", " ")
        assert text.count("layer30.norm") == 1, "in the table of values"


def test_the_timeline_lists_the_events_of_all_hosts_by_time(page: Page) -> None:
    events = block(page, "events").rows

    assert [row[0] for row in events] == sorted(row[0] for row in events)
    texts = [(row[2], row[3]) for row in events]
    assert texts[0] == ("", "the job begins")
    assert ("algo-1", "finding: CPUBottleneck (cpu, host algo-1)") in texts
    assert ("algo-2", "the job fails: ValueError: loss is nan (at train.py:5 in step)") in texts
    assert texts[-1] == ("", "the job ends (failed)")


def test_a_job_without_a_monitor_says_how_to_have_one(tmp_path: Path) -> None:
    simulated(tmp_path / "job", report(), {"algo-1": failed("algo-2"), "algo-2": failed("algo-2")}, "x\n")

    page = build_page(jobs.read(tmp_path / "job"), now_s=START_S)

    for section in ("last-minutes", "findings", "steps", "system"):
        assert any("TOOLKIT_MONITOR=1" in text for text in words(page, section)), section
    assert sum(part.value for part in block(page, "ledger").parts) == pytest.approx(25.0)


@pytest.mark.parametrize("inner", ["profiler-output", "output/profiler", ""])
def test_a_copy_of_the_debuggers_files_alone_is_a_job_with_a_host_for_each_node(tmp_path: Path, inner: str) -> None:
    folder = tmp_path / "job" / inner / "system/incremental/2024120805"
    folder.mkdir(parents=True)
    nodes = ("algo-1",) if inner == "output/profiler" else ("algo-1", "algo-2")
    for node in nodes:
        (folder / f"1733636880.{node}.json").write_text(REAL.replace("algo-1", node))

    page = build_page(jobs.read(tmp_path / "job"), now_s=1733640000.0)

    assert page.status == "unfinished"
    assert page.summary == DEBUGGER_ALONE
    heats = [block for block in sections(page)["system"] if isinstance(block, HeatMap)]
    assert [heat.rows for heat in heats] == [("core 0", "core 1")] * len(nodes)
    assert "started 2024-12-08 05:48:39 UTC, ended 2024-12-08 05:48:40 UTC" in words(page, "outcome")[1]
    memory = block(page, "algo-1-memory")
    assert (memory.y.unit, max(memory.lines[0].mean)) == ("percent", pytest.approx(6.75))
    assert not any("TOOLKIT_MONITOR=1" in text for text in words(page, "system"))


@pytest.mark.parametrize("cut", ["samples", "steps", "findings"])
def test_damaged_measurements_cost_what_they_would_have_said(tmp_path: Path, cut: str) -> None:
    simulate_page(tmp_path / "job", 30)
    for path in (tmp_path / "job").rglob("*"):
        if path.is_file() and (cut in path.parts or path.name.startswith(cut)):
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 3] + b"\x00\xff" * 40)

    page = build_page(jobs.read(tmp_path / "job"), now_s=START_S)

    assert page.status == "failed" and len(page.sections) >= 9


def test_bytes_that_are_no_utf_8_cost_their_own_file_or_line(tmp_path: Path) -> None:
    simulate_page(tmp_path / "job", 30)
    opt_ml = tmp_path / "job/hosts/algo-2/opt/ml"
    (opt_ml / "input/config").mkdir(parents=True, exist_ok=True)
    bad = b'{"name": "loss\xff\xfe", "host": "\xc3(", "rule": "\xff"}\n'
    for name in ("input/config/hyperparameters.json", "output/monitor/monitor.json"):
        (opt_ml / name).write_bytes(bad)
    for name in ("metrics.jsonl", "monitor/findings.jsonl"):
        path = opt_ml / "output" / name
        path.write_bytes(bad + (path.read_bytes() if path.exists() else b""))

    page = build_page(jobs.read(tmp_path / "job"), now_s=START_S)

    assert [line.name for line in block(page, "metric-loss").lines] == ["rank 0 (algo-1)", "rank 1 (algo-2)"]


def test_a_time_that_no_calendar_has_is_named_so(tmp_path: Path) -> None:
    simulate_page(tmp_path / "job", 30)
    about = {"host": "algo-1", "start_s": -1e18, "end_s": 1e300}
    (tmp_path / "job/hosts/algo-1/opt/ml/output/monitor/monitor.json").write_text(json.dumps(about))
    (tmp_path / "job/job.json").write_text("{")

    page = build_page(jobs.read(tmp_path / "job"), now_s=START_S)

    assert "at an unknown time" in " ".join(words(page, "outcome"))


def test_without_numpy_the_report_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    simulate_page(tmp_path / "job", 30)
    monkeypatch.setitem(sys.modules, "numpy", None)

    page = build_page(jobs.read(tmp_path / "job"), now_s=START_S)

    assert page.status == "failed" and block(page, "metric-loss").lines
    assert any("pip install 'container-training-toolkit[report]'" in text for text in words(page, "system"))


def test_start_up_lasts_until_the_ranks_start_not_their_launcher(tmp_path: Path) -> None:
    outcome = failed("algo-1")
    launcher = Exit(
        process="torchrun", pid=70, code=1, ended_ns=int((START_S + 10) * 1e9), started_ns=int((START_S + 1) * 1e9)
    )
    rank = msgspec.structs.replace(outcome.exits[0], started_ns=int((START_S + 8) * 1e9))
    outcome = msgspec.structs.replace(outcome, exits=(launcher, rank))
    simulated(tmp_path / "job", report(), {"algo-1": outcome, "algo-2": outcome}, "x\n")

    page = build_page(jobs.read(tmp_path / "job"), now_s=START_S)

    assert block(page, "ledger").parts[0].value == pytest.approx(16.0)  # Two hosts.


def spot(job_dir: Path, *, resumed_time: str = "2026-11-18T11:07:10.000Z") -> Page:
    """Write a job of two hosts that was interrupted after 20 s, waited 10 s, and then ran for 10 s; return its page."""
    hosts = {"algo-1": HostReport(exit_code=143, status="stopped"), "algo-2": HostReport(exit_code=0)}
    noted = Interruption(
        time="2026-11-18T11:06:58.000Z",
        end_time="2026-11-18T11:07:00.000Z",
        resumed_time=resumed_time,
        training_seconds=20.0,
        checkpoint_time="2026-11-18T11:06:55.000Z",
        hosts=hosts,
        folder="interrupted/1" if resumed_time else "",
    )
    first = report(
        "Stopped",
        secondary_status="Interrupted",
        failed_host="",
        exit_code=143,
        end_time="2026-11-18T11:07:00.000Z",
        training_seconds=20.0,
        billable_seconds=40.0,
        hosts=hosts,
        checkpoint_time=noted.checkpoint_time,
    )
    job_report = report(
        "Completed" if resumed_time else "Stopped",
        secondary_status="Completed" if resumed_time else "MaxWaitTimeExceeded",
        failed_host="",
        exit_code=0 if resumed_time else 143,
        end_time="2026-11-18T11:07:20.000Z",
        training_seconds=40.0,
        billable_seconds=60.0 if resumed_time else 40.0,
        waited_seconds=10.0 if resumed_time else 0.0,
        managed_spot=True,
        interruptions=(noted,),
    )
    began = Exit(
        process="script", pid=7, started_ns=int((START_S + 1) * 1e9), ended_ns=int((START_S + 20) * 1e9), code=0
    )
    stopped = Outcome(status="stopped", exit_code=143, exits=(began,))
    if resumed_time:
        (job_dir / "interrupted").mkdir(parents=True)
        (job_dir / "interrupted/1").mkdir()
        simulated(job_dir / "interrupted/1", first, {"algo-1": stopped, "algo-2": stopped}, "the first start\n")
        again = msgspec.structs.replace(began, started_ns=int((START_S + 32) * 1e9), ended_ns=int((START_S + 40) * 1e9))
        stopped = Outcome(status="succeeded", exit_code=0, exits=(again,))
    simulated(job_dir, job_report, {"algo-1": stopped, "algo-2": stopped}, "the last start\n")
    return build_page(jobs.read(job_dir), now_s=START_S + 1000)


def test_a_start_of_which_nothing_is_known_does_not_keep_the_page_from_being_written(tmp_path: Path) -> None:
    spot(tmp_path / "job")
    for path in (tmp_path / "job/interrupted/1").rglob("*"):
        if path.is_file():
            path.unlink()

    page = build_page(jobs.read(tmp_path / "job"), now_s=START_S + 1000)

    ledger = block(page, "ledger")
    assert isinstance(ledger, Shares) and ledger.total == 60.0


def test_an_interrupted_jobs_ledger_is_of_all_its_starts_and_not_of_the_wait_between_them(tmp_path: Path) -> None:
    page = spot(tmp_path / "job")

    ledger = block(page, "ledger")
    assert isinstance(ledger, Shares) and ledger.total == 60.0
    parts = {part.name: part.value for part in ledger.parts if part.value}
    # Each of two hosts: 1 s before the first start's script and 2 s before the second's, 5 s after the checkpoint.
    assert parts == pytest.approx(
        {"start-up": 6.0, "work lost since the last checkpoint": 10.0, "unexplained": 44.0}, abs=0.01
    )
    assert "all 2 starts; nothing is paid between" in ledger.note
    assert page.summary.endswith("with 1 spot interruption.")
    assert words(page, "outcome")[1:2] == [
        "Training seconds: 80; Billable seconds: 60; Managed Spot Training savings: 25.0%"
    ]
    table = block(page, "interruptions")
    assert isinstance(table, Table)
    assert table.rows[0] == (
        1, "2026-11-18 11:06:58 UTC", 20.0, 5.0, 10.0, "143 (1 host), 0 (1 host)", "interrupted/1",
    )  # fmt: skip
    events = block(page, "events")
    assert isinstance(events, Table)
    assert [row[3] for row in events.rows if "interruption" in str(row[3])] == [
        "spot interruption 1: SIGTERM to all hosts",
        "spot interruption 1: all hosts have ended",
        "spot interruption 1: the job starts again, on new hosts",
    ]


def test_a_job_that_was_never_started_again_lost_what_followed_its_last_checkpoint(tmp_path: Path) -> None:
    page = spot(tmp_path / "job", resumed_time="")

    ledger = block(page, "ledger")
    assert isinstance(ledger, Shares) and ledger.total == 40.0
    parts = {part.name: part.value for part in ledger.parts if part.value}
    assert parts == pytest.approx(
        {"start-up": 2.0, "work lost since the last checkpoint": 10.0, "unexplained": 28.0}, abs=0.01
    )


def test_while_an_interrupted_job_waits_its_page_says_so_and_counts_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    spot(folder, resumed_time="")
    facts = json.loads((folder / "job.json").read_text())
    waiting = {**facts, "status": "InProgress", "secondary_status": "Interrupted", "end_time": "", "exit_code": None}
    (folder / "job.json").write_text(json.dumps(waiting))
    lock = (folder / ".toolkit-job").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)

    page = build_page(jobs.read(folder), now_s=START_S + 320)

    assert page.summary == "The job was interrupted, and waits for new hosts, 5 min 20 s after its start."
    ledger = block(page, "ledger")
    assert isinstance(ledger, Shares) and ledger.total == 40.0
    lock.close()


def test_the_page_of_an_interrupted_start_is_that_of_a_stopped_job(tmp_path: Path) -> None:
    spot(tmp_path / "job")

    page = build_page(jobs.read(tmp_path / "job/interrupted/1"), now_s=START_S + 1000)

    assert page.status == "stopped"
    assert "Managed spot" not in str(page)


def flat(name: str, value: float) -> Line:
    return Line(name=name, x=(0.0, 1.0), mean=(value, value))


def test_a_limit_that_would_flatten_the_curve_is_a_label_and_another_one_a_line() -> None:
    far = label_limit(flat("used", 2.0**30), flat("limit", 24 * 2.0**30))
    near = label_limit(flat("used", 2.0**30), flat("limit", 1.5 * 2.0**30))

    assert [line.name for line in far if line] == ["used (limit 24.00 GiB)"]
    assert [line.name for line in near if line] == ["used", "limit"]


def test_a_hang_shows_the_stacks_of_its_ranks_and_whose_host_the_others_waited_for(tmp_path: Path) -> None:
    cause = Cause(blame="user", kind="Hang", message="rank 1 is in load (data.py:6)", primary=True)
    outcome = Outcome(status="failed", exit_code=124, cause=cause, cause_host="algo-2")
    hosts = {name: HostReport(exit_code=124, status="failed", cause="hung") for name in ("algo-1", "algo-2")}
    job = tmp_path / "job"
    simulated(job, report(hosts=hosts, exit_code=124), {"algo-1": outcome, "algo-2": outcome})
    for host, rank, place in (("algo-1", 0, "all_reduce"), ("algo-2", 1, "load")):
        folder = job / "hosts" / host / "opt/ml/output/data/stacks"
        folder.mkdir(parents=True)
        code = job / "hosts" / host / "opt/ml/code/data.py"
        stack = (
            f"Thread 0x1 (most recent call first):\n  idle\n\nCurrent thread 0x2 (most recent call first):\n  {code} in"
        )
        (folder / f"{host}-rank-{rank}.txt").write_text(f"{stack} {place}\n")

    page = build_page(jobs.read(job), now_s=START_S)

    stacks = [block for block in sections(page)["outcome"] if isinstance(block, Lines)]
    assert [stack.title for stack in stacks] == ["Stack of rank 1 of algo-2", "Stack of rank 0 of algo-1"]
    assert stacks[0].lines == ("Current thread 0x2 (most recent call first):", "  /opt/ml/code/data.py in load")
    ends = {row[0]: row[3] for row in block(page, "hosts").rows}
    assert ends == {"algo-1": "waited for host algo-2", "algo-2": "hung: the other hosts waited for it"}


def test_a_stack_of_threads_without_a_main_one_is_shown_whole() -> None:
    lines = ("Thread 1 (idle)", "  a", "Thread 2 (idle)", "  b")

    assert choose_thread(lines) == lines
    assert choose_thread((*lines, 'Thread 3 (active): "MainThread"', "  c"))[1:] == ("  c",)


def test_a_metric_whose_pattern_matched_nothing_is_named_and_counters_have_no_chart(tmp_path: Path) -> None:
    job = simulated(tmp_path / "job", report("Completed", failed_host="", hosts={}), {"algo-1": None})
    host = job / "hosts/algo-1/opt/ml"
    (host / "input/config").mkdir(parents=True)
    names = ("loss", "val/accuracy")
    patterns = [{"Name": name, "Regex": f"{name}=([0-9.]+)"} for name in names]
    (host / "input/config/metric-definition-regex.json").write_text(json.dumps(patterns))
    rows = [sample(name, float(n), n) for n in range(1, 4) for name in ("loss", "epoch", "train/global_step")]
    (host / "output/metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    page = build_page(jobs.read(job), now_s=START_S)

    assert words(page, "metrics") == ["1 metric never captured: val/accuracy. Its pattern matched nothing."]
    assert [block.title for block in sections(page)["metrics"] if isinstance(block, Chart)] == ["loss"]
    assert len(block(page, "metric-values").rows) == 3


def test_of_ten_thousand_metrics_the_page_has_a_part_and_says_which_it_leaves_out(tmp_path: Path) -> None:
    job = simulated(tmp_path / "job", report(), {"algo-1": failed("algo-2")})
    rows = (sample(f"layer{name}.norm", 1.0, n, step=n) for n in (1, 2) for name in range(10_000))
    output = job / "hosts/algo-1/opt/ml/output"
    (output / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    page = build_page(jobs.read(job), now_s=START_S)

    metrics = sections(page)["metrics"]
    assert len(metrics) < 120
    assert len(block(page, "metric-values").rows) == 500
    assert "The first 500 of 10,000 metrics" in block(page, "metric-values").note
    (left_out,) = words(page, "metrics")
    assert left_out.startswith("9,888 metrics without a chart here (layer112.norm, ") and "metrics.jsonl" in left_out


def test_a_hang_shows_what_the_ranks_of_each_process_group_did_last(tmp_path: Path) -> None:
    waiting = CallPlace(
        ranks=(0, 1), number=3, operation="all_reduce", payload="4 Float", file="/opt/ml/code/train.py", line=61
    )
    group = GroupComparison(
        group="the default group",
        state="missing",
        common_number=2,
        common_operation="broadcast",
        places=(waiting,),
        absent=(2,),
        unread=(3,),
    )
    idle = GroupComparison(
        group="group 1", state="idle", places=(CallPlace(ranks=(0,), number=7, operation="barrier", is_complete=True),)
    )
    cause = Cause(blame="user", kind="Hang", message="rank 2 is in load (data.py:6)", primary=True)
    outcome = Outcome(status="failed", exit_code=124, cause=cause, collectives=(group, idle))
    job = tmp_path / "job"
    simulated(job, report(exit_code=124), {"algo-1": outcome})

    page = build_page(jobs.read(job), now_s=START_S)

    assert block(page, "collectives").rows == (
        (
            "the default group",
            "broadcast #2",
            "ranks 0-1",
            "waits in it",
            "all_reduce #3 of 4 Float",
            "/opt/ml/code/train.py:61",
        ),
        ("the default group", "broadcast #2", "rank 2", "never reached it", "", ""),
        ("the default group", "broadcast #2", "rank 3", "did not answer", "", ""),
        ("group 1", "not known", "rank 0", "completed", "barrier #7", ""),
    )
