"""The samples of a host, from whichever files its job left."""

from pathlib import Path

from toolkit.series import debugger, samples
from toolkit.series.debugger_names import files_of
from toolkit.series.samples import Samples


def of_host(monitor: Path, host: str = "") -> Samples:
    """Return the samples of *host* in its folder *monitor* (/opt/ml/output/monitor).

    Where there are none, SageMaker Debugger's in `profiler`, `profiler-output` or `system` beside it, which may be of
    several nodes: that of the same name as the host, or the only one.

    Raises:
        UserError: numpy is not installed.
    """
    found = samples.read(monitor / "samples")
    if found.span() is not None:
        return found
    files = [path for of_node in files_of(monitor.parent).values() for path in of_node]
    nodes = debugger.read(files[0].parents[3]) if files else {}
    if host in nodes:
        return nodes[host]
    return next(iter(nodes.values())) if len(nodes) == 1 else found
