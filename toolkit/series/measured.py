"""The samples of a host, from whichever files its job left."""

from pathlib import Path

from toolkit.series import debugger_reader, sample_reader
from toolkit.series.debugger_names import files_of
from toolkit.series.sample_reader import Samples


def of_host(monitor: Path, host: str = "") -> Samples:
    """Return the samples of *host* in its folder *monitor* (/opt/ml/output/monitor).

    Where there are none, SageMaker Debugger's in `profiler`, `profiler-output` or `system` beside it, which may be of
    several nodes: that of the same name as the host, or the only one.

    Raises:
        UserError: numpy is not installed.
    """
    monitored = sample_reader.read(monitor / "samples")
    if monitored.span() is not None:
        return monitored
    files = [path for of_node in files_of(monitor.parent).values() for path in of_node]
    nodes = debugger_reader.read(files[0].parents[3]) if files else {}
    if host in nodes:
        return nodes[host]
    return next(iter(nodes.values())) if len(nodes) == 1 else monitored
