"""The first code of the console script `train`: installs signal handlers before it imports anything else.

If `train` is the first process of a container (PID 1), the kernel silently drops a SIGTERM until there is a handler for
it. Nothing can handle a signal while Python itself starts (docs/supervision.md says how long that takes).
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
