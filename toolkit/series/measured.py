"""The samples of a host, from whichever files its job left."""

from pathlib import Path

from toolkit.series import debugger, samples
from toolkit.series.samples import Samples


def of_host(monitor: Path, host: str = "") -> Samples:
    """Return the samples of *host* in its folder *monitor* (/opt/ml/output/monitor).

    Where there are none, SageMaker Debugger's in `profiler` beside it, which may be of several nodes: that of the same
    name as the host, or the only one.

    Raises:
        UserError: numpy is not installed.
    """
    found = samples.read(monitor / "samples")
    if found.span() is not None:
        return found
    nodes = debugger.read(monitor.parent / "profiler")
    if host in nodes:
        return nodes[host]
    return next(iter(nodes.values())) if len(nodes) == 1 else found
