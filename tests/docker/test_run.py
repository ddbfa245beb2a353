"""`toolkit run --backend docker`: the same words, faults and results as with processes, in containers."""

import os
import signal
import time
from pathlib import Path

import pytest

from tests.commands.simulate.toolkit_run import ToolkitRun
from tests.docker.engine import Engine
from toolkit.train.supervise.signals import SAME_REQUEST_S

pytestmark = pytest.mark.docker

LOOKS = """
import os, pathlib, socket, sys
channel = pathlib.Path(os.environ["SM_CHANNEL_TRAIN"])
print("loss=0.5", sorted(path.name for path in channel.iterdir()), (channel / "a").read_text(), flush=True)
try:
    (channel / "a").write_text("new")
except OSError as error:
    print("read-only", error.errno)
print(os.environ["SM_HP_EPOCHS"], os.environ.get("MINE"), os.statvfs("/dev/shm").f_blocks * 4096 >> 20, "MiB")
host = socket.gethostname()
open(f"/opt/ml/checkpoints/{host}", "w").write(host)
open(os.environ["SM_MODEL_DIR"] + f"/{host}", "w").write(socket.gethostbyname("algo-2"))
"""
WAITS = "import time\nprint('computing', flush=True)\nwhile True: time.sleep(0.05)\n"
EATS = "held = []\nwhile True:\n    held.append(bytearray(16 << 20))\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "code").mkdir()
    return tmp_path


def run_in_container(folder: Path, engine: Engine, image: str, text: str, *words: str) -> ToolkitRun:
    (folder / "code/train.py").write_text(text)
    boxed = ("--name", engine.name, "--backend", "docker", "--image", image)
    return ToolkitRun(folder, str(folder / "code/train.py"), *boxed, *words, **engine.environ)


def left(engine: Engine, run: ToolkitRun) -> str:
    """Return the containers and networks of the job that are still there."""
    label = f"label=toolkit.job-dir={run.folder}"
    listings = (("ps", "--all", "--quiet"), ("network", "ls", "--quiet"))
    return "".join(engine.ask(*words, "--filter", label) for words in listings)


def test_two_containers_are_two_hosts_with_the_jobs_folders(engine: Engine, image: str, folder: Path) -> None:
    data = folder / "data"
    data.mkdir()
    (data / "a").write_text("sample")
    words = ("--hosts", "2", "--channel", f"train={data}:FastFile", "--checkpoints", str(folder / "kept"))
    more = (
        "--hyperparameter",
        "epochs=3",
        "--metric",
        "loss=loss=([.0-9]+)",
        "--env",
        "MINE=yes",
        "--shm-size",
        "128m",
    )

    with run_in_container(folder, engine, image, LOOKS, *words, *more) as run:
        code = run.end()

    assert code == 0, run.console
    assert run.codes == {"algo-1": 0, "algo-2": 0}
    assert run.report["metrics"] == {"loss": 0.5}
    assert run.console.count("['a'] sample") == 2
    assert run.console.count("3 yes 128 MiB") == 2
    assert run.console.count("read-only 30") == 2  # EROFS, for root, too
    assert sorted(run.archive("model.tar.gz")) == ["algo-1", "algo-2"]
    assert sorted(path.name for path in (folder / "kept").iterdir()) == ["algo-1", "algo-2"]
    assert (data / "a").read_text() == "sample"
    assert left(engine, run) == ""


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_what_containers_write_as_root_in_a_users_folder_is_that_users(
    engine: Engine, image: str, folder: Path
) -> None:
    os.chown(folder, 65534, 65534)
    script = "import os\nopen('/opt/ml/checkpoints/last', 'w').write('1')\nprint('user', os.getuid())\n"

    with run_in_container(folder, engine, image, script, "--checkpoints", str(folder / "kept")) as run:
        assert run.end() == 0, run.console

    assert "user 0" in run.console
    written = [folder / "kept", folder / "kept/last", *run.folder.rglob("*")]
    assert [path for path in written if path.lstat().st_uid == 0] == []


def test_a_container_that_is_killed_is_a_host_that_vanished(engine: Engine, image: str, folder: Path) -> None:
    with run_in_container(folder, engine, image, WAITS, "--hosts", "2", "--kill", "algo-2@4s") as run:
        code = run.end()

    assert code == 75, run.console
    assert run.report["failure_reason"] == "InternalServerError: host algo-2 vanished"
    assert run.codes["algo-2"] == 137
    assert left(engine, run) == ""


def test_a_container_killed_before_it_is_there_dies_all_the_same(engine: Engine, image: str, folder: Path) -> None:
    with run_in_container(folder, engine, image, WAITS, "--kill", "algo-1@0s") as run:
        code = run.end()

    assert code == 75, run.console
    assert left(engine, run) == ""


SAVES = """
import signal, sys
def save(*_):
    open("/opt/ml/model/last", "w").write("saved")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
"""


def test_a_stop_reaches_the_script_in_its_container(engine: Engine, image: str, folder: Path) -> None:
    with run_in_container(folder, engine, image, SAVES + WAITS) as run:
        run.until("computing")
        run.signal(signal.SIGTERM)
        code = run.end()

    assert code == 143, run.console
    assert (run.report["status"], run.report["exit_code"]) == ("Stopped", 143)
    assert run.archive("model.tar.gz") == {"last": b"saved"}


@pytest.mark.parametrize("after", ["0s", "400ms"])
def test_a_stop_reaches_a_train_that_is_only_being_started(
    engine: Engine, image: str, folder: Path, after: str
) -> None:
    with run_in_container(folder, engine, image, WAITS, "--stop-after", after) as run:
        code = run.end()

    assert code == 143, run.console
    assert run.report["hosts"]["algo-1"]["status"] == "stopped"
    assert run.report["training_seconds"] < 60


def test_containers_share_the_folder_of_a_file_system(engine: Engine, image: str, folder: Path) -> None:
    data = folder / "data"
    data.mkdir(mode=0o777)
    data.chmod(0o777)
    (data / "a").write_text("sample")
    words = ("--hosts", "2", "--channel", f"train={data}:FileSystem", "--channel", f"scratch={data}:FileSystem:rw")

    with run_in_container(folder, engine, image, SHARES, *words) as run:
        code = run.end()

    assert code == 0, run.console
    assert run.console.count("train: ['a'] 30") == 2  # EROFS
    assert sorted(path.name for path in data.iterdir()) == ["a", "algo-1", "algo-2"]
    assert (data / "a").read_text() == "sample"


SHARES = """
import os, pathlib
train, scratch = (pathlib.Path(os.environ["SM_CHANNEL_" + name]) for name in ("TRAIN", "SCRATCH"))
try:
    (train / "b").write_text("")
except OSError as error:
    print("train:", sorted(path.name for path in train.iterdir() if len(path.name) == 1), error.errno, flush=True)
(scratch / os.environ["SM_CURRENT_HOST"]).write_text("")
"""
COUNTS = """
import os, pathlib, signal
kept = pathlib.Path("/opt/ml/checkpoints/" + os.environ["SM_CURRENT_HOST"])
starts = len(kept.read_text()) + 1 if kept.exists() else 1
kept.write_text("x" * starts)
print("start", starts, "of", os.environ["SM_CURRENT_HOST"], os.path.exists("/tmp/mark"), flush=True)
open("/tmp/mark", "w").close()
while starts == 1:
    signal.pause()
"""


def test_an_interrupted_job_starts_again_in_new_containers(engine: Engine, image: str, folder: Path) -> None:
    words = ("--hosts", "2", "--interrupt", "0s", "--interrupt", "15s+1s", "--checkpoints", str(folder / "kept"))
    with run_in_container(folder, engine, image, COUNTS, *words) as run:
        code = run.end()

    assert code == 0, run.console
    assert [interruption["folder"] for interruption in run.report["interruptions"]] == [
        "interrupted/1",
        "interrupted/2",
    ]
    for host in ("algo-1", "algo-2"):
        assert f"start 1 of {host} False" in (run.folder / f"interrupted/2/logs/{host}.log").read_text()
        assert f"start 2 of {host} False" in (run.folder / f"logs/{host}.log").read_text()
    assert left(engine, run) == ""


def test_ctrl_c_twice_leaves_no_container(engine: Engine, image: str, folder: Path) -> None:
    ignores = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    with run_in_container(folder, engine, image, ignores + WAITS) as run:
        run.until("computing")
        run.signal(signal.SIGINT)
        run.until("stopping the job")
        time.sleep(SAME_REQUEST_S)
        run.signal(signal.SIGINT)
        code = run.end()

    assert code == 130, run.console
    assert left(engine, run) == ""


def test_what_a_killed_toolkit_run_left_is_cleared_by_the_next(engine: Engine, image: str, folder: Path) -> None:
    with run_in_container(folder, engine, image, WAITS) as run:
        run.until("computing")
        run.signal(signal.SIGKILL)
        run.end()
    assert left(engine, run) != ""

    with run_in_container(folder, engine, image, "print('again')\n", "--replace") as again:
        code = again.end()

    assert code == 0, again.console
    assert left(engine, again) == ""


def test_a_job_of_a_name_that_another_folders_job_has_is_refused(engine: Engine, image: str, folder: Path) -> None:
    network = f"toolkit-{engine.name}"
    engine.ask("network", "create", "--label", engine.label, network)

    with run_in_container(folder, engine, image, "print('again')\n") as run:
        code = run.end()

    assert code == 75, run.console
    assert f"expected no other job named {engine.name} on this engine, found its network {network}" in run.console
    assert f"docker network rm {network}" in run.console


def test_memory_is_the_containers_own(engine: Engine, image: str, folder: Path) -> None:
    with run_in_container(folder, engine, image, EATS, "--memory", "200m") as run:
        code = run.end()

    assert code == 137, run.console
    assert "out of memory" in run.report["failure_reason"].lower()


def test_without_an_engine_it_says_so(image: str, folder: Path) -> None:
    (folder / "code/train.py").write_text("print(1)\n")
    environ = {**os.environ, "DOCKER_HOST": f"unix://{folder}/none.sock"}
    words = ("--backend", "docker", "--image", image)
    with ToolkitRun(folder, str(folder / "code/train.py"), *words, **environ) as run:
        code = run.end()

    assert code != 0
    assert "docker ps" in run.console
    assert "Is the engine running" in run.console
