"""Compares the traces of a slow rank and a healthy one: the operators in which the slow rank spends more time.

When the monitor finds a slow rank, it lets both ranks trace five steps. If it did not, the job's own traces are used.
"""

from toolkit.commands.report.model import Block, Words
from toolkit.commands.report.sections import compared
from toolkit.commands.report.sections.material import Material
from toolkit.commands.report.sections.traced import TracePair
from toolkit.diagnosis import slow_rank
from toolkit.series.finding import Finding

ONE_HOST = (
    "None: rank {slow} runs on {host}, and rank {healthy} on {other}, and no monitor found it while the job ran: the "
    "job was too short for that, or its hosts have no link (TOOLKIT_LINK=off), so that each compares its own ranks. "
    'Trace both: set TOOLKIT_PROFILE="steps 10-20".'
)
AFTERWARDS = (
    "None: no monitor found it while the job ran; it was found in the files afterwards. Trace ranks {slow} and "
    '{healthy}: toolkit profile while the job runs, or TOOLKIT_PROFILE="steps 10-20".'
)
OTHER = "Traced together were rank {slow} and rank {other}; the sentence compares it with rank {healthy}."
RUNNING = "None yet: the monitor asked rank {slow} and a healthy rank to trace their next five steps."
NO_TRACE = (
    "None: the monitor asked rank {slow} and a healthy rank for a trace of five steps, but not both left one. Either "
    "they ended before, or a profiler of the script's own was running, of which the job's log has a line."
)


def find_pairs(material: Material) -> list[TracePair]:
    """Return the pairs of traces that are shown with a finding."""
    return [pair for finding in material.findings if (pair := _find_pair(material, finding)) is not None]


def build_blocks(material: Material, number: int, finding: Finding) -> list[Block]:
    """Return the difference of the two ranks' traces for *finding*, the page's *number*th: a table, or why there is
    none. Nothing if *finding* is not about a slow rank."""
    ranks = slow_rank.pair(finding)
    if ranks is None:
        return []
    slow, healthy = ranks
    pair = _find_pair(material, finding)
    if pair is not None and (traces := pair.of(slow, finding.host)) is not None:
        slow_trace, other_trace, other_rank = traces
        table = compared.build_difference_table(
            f"finding-{number}-difference", pair.window, slow_trace, other_trace, slow, other_rank
        )
        if other_rank == healthy:
            return [table]
        return [Words(name="Traces", text=OTHER.format(slow=slow, other=other_rank, healthy=healthy)), table]
    traces_by_rank = {trace.rank: trace for trace in material.traced.traces}
    if slow in traces_by_rank and healthy in traces_by_rank:
        slow_trace, other_trace = traces_by_rank[slow], traces_by_rank[healthy]
        return [
            compared.build_difference_table(
                f"finding-{number}-difference", material.traced.window, slow_trace, other_trace, slow, healthy
            )
        ]
    return [Words(name="Traces", text=_explain_absence(material, finding, slow, healthy))]


def _find_pair(material: Material, finding: Finding) -> TracePair | None:
    if slow_rank.pair(finding) is None or finding.rank is None:
        return None
    fitting = (
        pair
        for pair in material.traced.pairs
        if pair.attempt == finding.attempt and pair.of(finding.rank, finding.host) is not None
    )
    return next(fitting, None)


def _explain_absence(material: Material, finding: Finding, slow: int, healthy: int) -> str:
    if finding.live:
        return (RUNNING if material.job.status == "running" else NO_TRACE).format(slow=slow, healthy=healthy)
    host = material.ranks[healthy][0] if healthy in material.ranks else finding.host
    if host != finding.host:
        return ONE_HOST.format(slow=slow, host=finding.host, healthy=healthy, other=host)
    return AFTERWARDS.format(slow=slow, healthy=healthy)
