"""The first code of the console scripts `train` and `toolkit`: it handles signals before it imports anything else.

If `train` is the first process of a container (PID 1), the kernel silently drops a SIGTERM until there is a handler for
it. Nothing can handle a signal while Python itself starts (docs/supervision.md says how long that takes). Ctrl-C during
the imports of `toolkit` ends it without a word: a traceback of imports tells nobody anything.
"""

from toolkit.cli.outermost import guarded


def train() -> None:
    """Run `train`. Ctrl-C during its imports is a stop, and is reported as one."""
    guarded(_train)


def _train() -> None:
    import gc

    # Imports leave no garbage, and the search for it takes a tenth of the start-up time. main.py enables it again.
    gc.disable()
    from toolkit.cli.streams import fill_standard_streams, use_utf_8
    from toolkit.train.supervise.signals import Signals

    use_utf_8()
    fill_standard_streams(writable=False)
    with Signals(last=True) as signals:
        from toolkit.cli.main import train as run

        run(signals=signals)


def toolkit() -> None:
    """Run `toolkit COMMAND ...`."""
    _end_silently()
    from toolkit.cli.main import main

    main()


def _end_silently() -> None:
    """Let Ctrl-C end this process at once with 130, until the command has handlers of its own. Ignored, it stays so."""
    import os
    import signal

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # A handler, as the kernel drops a signal without one if this is PID 1.
        signal.signal(signal.SIGINT, lambda number, _: os._exit(128 + number))
