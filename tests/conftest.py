"""What holds for all tests."""

import signal


def pytest_configure() -> None:
    """Let what tests start hear SIGHUP, also under nohup: an ignored signal stays ignored in every child, and the
    toolkit heeds that; a handled one does not."""
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda _number, _frame: None)
