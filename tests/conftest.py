"""Rules and fixtures for all tests."""

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings

from tests.browser import Browser
from tests.storage.fixtures import bucket, faulty, moto, s3  # noqa: F401 - fixtures for all tests


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --all."""
    parser.addoption("--all", action="store_true", dest="all_tests", help="also run the tests that are marked as long")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests that are marked as long, except with --all and those that an argument names."""
    if config.option.all_tests:
        return
    paths = {_name(word) for word in config.args}
    left_out = [item for item in items if item.get_closest_marker("long") and _name(item.nodeid) not in paths]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


def _name(nodeid: str) -> str:
    """Return the name of a test without its parameters, "" for a file or a folder."""
    return nodeid.partition("::")[2].partition("[")[0]


def pytest_configure(config: pytest.Config) -> None:
    """Let what tests start hear SIGHUP and SIGINT, also under nohup and in the background of a shell: an ignored signal
    stays ignored in every child, and the toolkit heeds that; a handled one does not."""
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda _number, _frame: None)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # The jobs of tests are not those that `toolkit jobs` shows their author.
    os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="toolkit-tests-state-")
    if hasattr(config, "workerinput"):
        from tests.lanes import Worker

        config.pluginmanager.register(Worker())


def pytest_sessionstart(session: pytest.Session) -> None:
    """Let Hypothesis try fewer examples than with --all."""
    settings.register_profile("short", max_examples=40)
    settings.register_profile("all", max_examples=300)
    settings.load_profile("all" if session.config.option.all_tests else "short")


def pytest_unconfigure() -> None:
    """Remove the catalogue of this run's jobs."""
    shutil.rmtree(os.environ["XDG_STATE_HOME"], ignore_errors=True)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Deal the tests out as tests/lanes.py says (pytest -n)."""
    from tests.lanes import Lanes

    config.option.loadscopereorder = False
    return Lanes(config, log)


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Start one Chromium for all tests that need it (tests/browser.py)."""
    browser = Browser(tmp_path_factory.mktemp("chromium"))
    yield browser
    browser.close()
