"""The toolkit's processes beside the script, where pip installed the toolkit for one user alone."""

import sys
from pathlib import Path

import msgspec
import pytest

import toolkit
from tests.train.base import Base
from tests.train.test_monitor import SAMPLED


def test_the_monitor_runs_from_a_users_own_site_packages(base: Base, tmp_path: Path) -> None:
    """`pip install` of a user who may not write into Python's site-packages: ~/.local."""
    python = getattr(sys, "_base_executable", sys.executable)
    if python == sys.executable:
        pytest.skip("this Python is in no virtual environment, and has the toolkit itself")
    folder = tmp_path / f"user/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    folder.mkdir(parents=True)
    for package in (toolkit, msgspec):
        assert package.__file__ is not None
        (folder / package.__name__).symlink_to(Path(package.__file__).parent)
    base.program(SAMPLED)

    done = base.train(
        command=(python, "-c", "from toolkit.cli.start import train; train()"),
        PYTHONUSERBASE=str(tmp_path / "user"),
        PYTHONPATH="",
        TOOLKIT_MONITOR="1",
        TOOLKIT_MONITOR_INTERVAL_S="0.1",
    )

    assert (done.status, done.succeeded) == (0, True), done
    assert (base.output / "monitor/monitor.json").exists(), done
    assert "monitor ended" not in done.log, done
