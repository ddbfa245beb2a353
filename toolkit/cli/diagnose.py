"""`toolkit rules diagnose JOB_DIR`: what the rules find in a finished job, with other rules or parameters if asked."""

import argparse
import json
import os
import textwrap
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.log import Log

if TYPE_CHECKING:
    from toolkit.commands.jobs.data import JobData
    from toolkit.diagnosis.evidence import Evidence
    from toolkit.diagnosis.rule import Configuration
    from toolkit.series.finding import Finding

WIDTH = 100


def add(actions: Any) -> None:
    """Declare the action `diagnose` among *actions* of `toolkit rules`."""
    parser = actions.add_parser(
        "diagnose",
        help="show what the rules of the diagnosis find in a job",
        description="Show what the rules of the diagnosis find in a job's measurements, with the job's own rules or "
        "others (toolkit docs diagnosis). toolkit report shows the same beside the charts. Exit code: 0, or 78 if the "
        "folder holds no job.",
    )
    parser.set_defaults(handle=run)
    parser.add_argument(
        "job_dir", metavar="JOB_DIR", help="a job of toolkit run (its name or folder), or a container's /opt/ml/output"
    )
    parser.add_argument(
        "--rules", metavar="RULES", help="profiler rules: JSON, or a TOML, YAML or JSON file (default: the job's)"
    )
    parser.add_argument(
        "--rule-output",
        type=Path,
        metavar="DIR",
        help="write the Debugger's files there: ProfilerReport-<time>/profiler-output/",
    )


def run(arguments: argparse.Namespace, log: Log) -> int:
    """Print the findings; return 0.

    Raises:
        ContractError: an unknown rule or parameter.
        UserError: the folder holds no job, or the rules cannot be read.
    """
    from toolkit.commands import jobs
    from toolkit.commands.jobs.damage import find_damage
    from toolkit.commands.report.sections.diagnosed import apply_rules
    from toolkit.commands.simulate.catalogue import folder_of
    from toolkit.diagnosis import configuration, files
    from toolkit.train.platforms.profiler_rules import document

    job_dir = folder_of(arguments.job_dir, os.environ, Path.cwd())
    job = jobs.read(job_dir, now_s=time.time())
    raw, source = document(arguments.rules, "--rules") if arguments.rules else (None, str(job_dir))
    if not arguments.rules:
        raw = next((job_rules for host in job.hosts if (job_rules := files.rules(host.monitor)) is not None), None)
    rules = configuration.read(raw, source)
    for note in (*job.notes, *find_damage(job), *rules.notes):
        log.warning(note)
    hosts = [
        files.read(host.monitor, host.metrics, host=host.name, is_over=job.status != "running") for host in job.hosts
    ]
    findings, unjudged = apply_rules(job, job.hosts, rules.configurations)
    print("\n".join(_describe(job, hosts, findings)))
    for group in unjudged:
        print("\n".join(_wrap(f"Could not judge: {', '.join(group.rules)}: {group.reason}.")))
    if arguments.rule_output is not None:
        print(f"wrote {_write_rule_output(arguments.rule_output, job, hosts, rules.configurations, findings)}")
    return 0


def _describe(job: "JobData", hosts: "Sequence[Evidence]", findings: "Sequence[Finding]") -> Iterator[str]:
    from toolkit.diagnosis.folding import fold
    from toolkit.diagnosis.units import format_value

    steps = sum(len(rank_steps.end_s) for evidence in hosts for rank_steps in evidence.steps.values())
    samples = sum(len(evidence.times_s) for evidence in hosts)
    folds = fold(findings)
    many = "no finding" if not folds else "1 finding" if len(folds) == 1 else f"{len(folds)} findings"
    yield f"{job.name}: {many} ({samples} times of samples, {steps} steps)"
    if not samples and not steps:
        yield (
            "Nothing was measured: the monitor was off, the job too short for it, or its files are damaged"
            " (toolkit docs diagnosis)."
        )
    for group in folds:
        finding = group.finding
        details = (group.hosts if len(hosts) > 1 else "", f"attempt {finding.attempt}" if job.restarts else "")
        host = f"{', '.join(filter(None, details))}: " if any(details) else ""
        yield ""
        yield from _wrap(f"{host}{finding.rule}: {finding.text}")
        for number in finding.numbers:
            limit = "" if number.limit is None else f", limit {format_value(number.limit, number.unit)}"
            formula = f" ({number.formula})" if number.formula else ""
            values = group.of_all(number)
            ends = " to ".join(format_value(value, number.unit) for value in (min(values), max(values)))
            others = f" ({ends} on all of them)" if group.others else ""
            yield from _wrap(
                f"{number.name} = {format_value(number.value, number.unit)}{others}{limit}{formula}", "    "
            )
        yield from _wrap(f"Try: {finding.change}", "  ")
        yield from _wrap(f"Refuted by: {finding.refuted_by}", "  ")
        if finding.note:
            yield from _wrap(finding.note, "  ")


def _write_rule_output(
    folder: Path,
    job: "JobData",
    hosts: "Sequence[Evidence]",
    configurations: "Sequence[Configuration]",
    findings: "Sequence[Finding]",
) -> Path:
    """Write the Debugger's files below *folder*; return the folder of this report."""
    from toolkit.commands.report.html.page import render
    from toolkit.commands.report.sections.page import build_page
    from toolkit.diagnosis import rule_output

    now_s = time.time()
    output = folder / f"ProfilerReport-{int(now_s)}" / "profiler-output"
    reports = output / "profiler-reports"
    reports.mkdir(parents=True, exist_ok=True)
    for name, document in rule_output.documents(hosts, configurations, findings).items():
        (reports / name).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    (output / "profiler-report.html").write_text(render(build_page(job, now_s=now_s)), encoding="utf-8")
    return output


def _wrap(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent + "  ", break_on_hyphens=False)
