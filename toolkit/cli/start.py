"""The first code of the console script `train`: it catches signals before it imports anything else.

As the first process of a container `train` gets a signal only once there is a handler for it; until then the kernel
drops a SIGTERM without a word. What Python itself takes to start cannot be covered (docs/supervision.md says how long).
"""

from toolkit.cli.streams import fill_standard_streams, use_utf_8
from toolkit.supervise.signals import Signals


def train() -> None:
    """Run `train`."""
    use_utf_8()
    fill_standard_streams(writable=False)
    with Signals(last=True) as signals:
        from toolkit.cli.main import train as run

        run(signals=signals)
