"""The toolkit's processes beside the script, where pip installed the toolkit for one user alone."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import toolkit
from tests.ports import free_ports
from tests.train.base import Base
from tests.train.test_monitor import SAMPLED
from toolkit.own_module import STARTER


@pytest.mark.parametrize("installed", ["--user", "--target"])
def test_monitor_exporters_and_storage_run_from_where_pip_installed_the_toolkit(
    base: Base, tmp_path: Path, installed: str
) -> None:
    """`pip install` of a user who may not write into Python's site-packages: ~/.local, or a folder on PYTHONPATH."""
    python = getattr(sys, "_base_executable", sys.executable)
    if python == sys.executable:
        pytest.skip("this Python is in no virtual environment, and has the toolkit itself")
    of_user = f"user/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    folder = tmp_path / (of_user if installed == "--user" else "target")
    folder.mkdir(parents=True)
    extras = [pytest.importorskip(name) for name in ("obstore", "prometheus_client")]
    for package in (toolkit, msgspec, *extras):
        assert package.__file__ is not None
        (folder / package.__name__).symlink_to(Path(package.__file__).parent)
    base.program(
        SAMPLED
        + "open(os.environ['SM_CHECKPOINT_DIR'] + '/last', 'w').close()\n"
        + "import urllib.request\n"
        + "url = f'http://127.0.0.1:{os.environ[\"TOOLKIT_PROMETHEUS_PORT\"]}/metrics'\n"
        + "ends_s = time.monotonic() + 60\n"
        + "while time.monotonic() < ends_s:\n"
        + "    try:\n"
        + "        print(urllib.request.urlopen(url, timeout=20).status, 'served'); break\n"
        + "    except OSError:\n"
        + "        time.sleep(0.1)\n"
    )

    done = base.train(
        command=(python, "-c", "from toolkit.cli.start import train; train()"),
        PYTHONUSERBASE=str(tmp_path / "user"),
        PYTHONPATH="" if installed == "--user" else str(folder),
        TOOLKIT_PROMETHEUS_PORT=str(free_ports(1)[0]),
        TOOLKIT_PROMETHEUS_ADDRESS="127.0.0.1",
        TOOLKIT_CHECKPOINT_URI=(tmp_path / "store").as_uri(),
        TOOLKIT_MONITOR="1",
        TOOLKIT_MONITOR_INTERVAL_S="0.1",
        deadline_s=200.0,
    )

    assert (done.status, done.succeeded) == (0, True), done
    assert (base.output / "monitor/monitor.json").exists(), done
    assert "monitor ended" not in done.log and b"200 served" in done.stdout, done
    assert '"last"' in (tmp_path / "store/hosts/0/manifest.json").read_text(), done


def test_the_module_is_that_of_the_folder_although_another_toolkit_is_installed(tmp_path: Path) -> None:
    (tmp_path / "toolkit").mkdir()
    (tmp_path / "toolkit" / "__init__.py").write_text("")
    (tmp_path / "toolkit" / "place.py").write_text(
        "import sys; print(__file__, sys.argv[1:], sys.path[0] == sys.argv[1])"
    )

    words = [sys.executable, "-I", "-c", STARTER, str(tmp_path), "toolkit.place", str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)

    assert done.stdout.split() == [str(tmp_path / "toolkit" / "place.py"), f"['{tmp_path}']", "False"]
