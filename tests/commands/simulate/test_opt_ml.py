"""Scripts with the literal path /opt/ml/..., on a machine that simulates hosts as processes."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.commands.simulate.test_stage import asked_in
from tests.commands.simulate.toolkit_run import ToolkitRun
from toolkit.commands.simulate import opt_ml
from toolkit.log import Log

PERSON = 1234
LITERAL = 'open("/opt/ml/checkpoints/step.pt", "wb")\n'
WHO_AM_I = (
    "import os, tempfile; open('/opt/ml/mine', 'w').close(); tempfile.TemporaryFile();"
    "print(os.getuid(), os.getgid(), os.stat('/opt/ml/mine').st_uid, sorted(os.listdir('/opt')), flush=True);"
)


def warned(tmp_path: Path, source: str = "", **more: Any) -> str:
    """Return the warnings for a job whose hosts cannot have their own /opt/ml, because it is in the machine's."""
    lines: list[bytes] = []
    log = Log()
    log.say_through(lines.append)
    job = asked_in(tmp_path, job_dir=Path("/opt/ml/jobs/one"), **more)
    job.script.write_text(source)

    assert opt_ml.give_own_opt_ml(job, (), log) == ()
    return b"".join(lines).decode()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (f"\n{LITERAL}", "train.py:2 names /opt/ml/checkpoints/step.pt: "),
        (LITERAL, "(/opt/ml/jobs/one lies below it). Let it use SM_CHECKPOINT_DIR, "),
        ("torch.save(m, '/opt/ml/model/m.pt')", "Let it use SM_MODEL_DIR, "),
        ("base = Path('/opt/ml')", "train.py:1 names /opt/ml: "),
        ("os.listdir('/opt/ml/input/data/train')", "SM_CHANNEL_"),
    ],
)
def test_a_script_that_names_the_literal_is_warned_of(tmp_path: Path, source: str, message: str) -> None:
    assert message in warned(tmp_path, source)


@pytest.mark.parametrize(
    "source",
    [
        "print('hello')",
        "os.environ.get('SM_MODEL_DIR', '/opt/ml/model')",
        "x = 1  # as /opt/ml/model",
        "run('/opt/mlflow/bin/mlflow', '/data/opt/ml/x')",
    ],
)
def test_a_script_that_only_seems_to_is_not(tmp_path: Path, source: str) -> None:
    assert warned(tmp_path, source) == ""


def test_a_literal_in_a_hyperparameter_or_the_environment_is_one_too(tmp_path: Path) -> None:
    assert "hyperparameter out names /opt/ml/model" in warned(tmp_path, hyperparameters={"out": "/opt/ml/model"})
    assert "env OUT names /opt/ml/model" in warned(tmp_path, environment={"OUT": "/opt/ml/model"})


def test_there_is_one_warning_however_many_literals_there_are(tmp_path: Path) -> None:
    assert warned(tmp_path, LITERAL * 9).count("\n") == 1


def test_each_host_writes_to_its_own(tmp_path: Path) -> None:
    if reason := opt_ml.reason_refused(tmp_path):
        pytest.skip(f"this machine allows no mount namespaces: {reason}")
    listing = sorted(Path("/opt").glob("ml/**/*")), Path("/opt/ml").exists()

    with ToolkitRun(tmp_path, "writes_literally.py", "--hosts", "2") as job:
        assert job.end() == 0

    for host in ("algo-1", "algo-2"):
        checkpoints = job.folder / "hosts" / host / "opt/ml/checkpoints"
        assert sorted(path.name for path in checkpoints.iterdir()) == ["step.pt", "too.pt"]
        assert (checkpoints / "step.pt").read_text() == host
        assert (checkpoints / "step.pt").stat().st_uid == os.getuid()
    assert job.archive("model.tar.gz") == {"model.txt": b"m"}
    assert f"uid={os.getuid()} gid={os.getgid()} found=['step.pt', 'too.pt']" in job.console
    assert (sorted(Path("/opt").glob("ml/**/*")), Path("/opt/ml").exists()) == listing


@pytest.mark.root
@pytest.mark.skipif(os.getuid() != 0, reason="needs to be root, to give up a capability")
def test_root_without_the_right_to_mount_is_warned_and_the_job_runs(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(f"print('trained')\nif False: {LITERAL}")
    words = [sys.executable, "-m", "toolkit", "run", "train.py", "--job-dir", "job"]

    done = subprocess.run(
        ["setpriv", "--bounding-set", "-sys_admin", *words],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "trained")
    assert "warning: train.py:2 names /opt/ml/checkpoints/step.pt" in done.stderr
    assert "(a mount namespace: Operation not permitted)" in done.stderr


@pytest.fixture
def ground() -> Iterator[Path]:
    """A folder of an unprivileged user, with the program in it: only root can read pytest's own folders."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(opt_ml.MOUNTS, folder)
        (Path(folder) / "base").mkdir()
        for path in (Path(folder), *Path(folder).iterdir()):
            path.chmod(0o755)
            if os.getuid() == 0:
                os.chown(path, PERSON, PERSON)
        yield Path(folder)


def as_person(folder: Path, *words: str, prefix: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run the program as a user who is not root, with an interpreter that every user may execute."""
    python = sys.executable if os.getuid() else "/usr/bin/python3"
    if not Path(python).exists():
        pytest.skip(f"an unprivileged user needs a Python: {python} is not there")
    who: dict[str, Any] = {} if os.getuid() else {"user": PERSON, "group": PERSON, "extra_groups": [44]}
    program = [*prefix, python, "-I", "-S", str(folder / "mounts.py"), str(folder / "base"), *words]
    return subprocess.run(
        [token or python for token in program], cwd=folder, capture_output=True, text=True, timeout=60, **who
    )


def test_who_is_not_root_has_one_in_a_user_namespace(ground: Path) -> None:
    person = os.getuid() or PERSON
    tried = as_person(ground)
    if tried.returncode:
        pytest.skip(f"this machine allows no user namespaces: {tried.stderr.strip()}")

    done = as_person(ground, "", "-c", WHO_AM_I + "os.kill(os.getpid(), 15)")

    names = sorted({*(path.name for path in Path("/opt").iterdir()), "ml"})
    assert done.stdout == f"{person} {os.getgid() if os.getuid() else PERSON} {person} {names}\n"
    assert (done.returncode, done.stderr) == (-15, "")
    assert (ground / "base/mine").stat().st_uid == person
    assert not Path("/opt/ml/mine").exists()


def test_without_user_namespaces_it_says_what_was_refused(ground: Path) -> None:
    none = 'echo 0 > /proc/sys/user/max_user_namespaces; exec setpriv --bounding-set -all --inh-caps -all "$@"'
    prefix = ("unshare", "--user", "--map-current-user", "--keep-caps", "sh", "-c", none, "sh")
    if as_person(ground).returncode:
        pytest.skip("this machine allows no user namespaces in which none are allowed")

    done = as_person(ground, prefix=prefix)

    assert (done.returncode, done.stderr) == (1, "a user namespace: No space left on device\n")


def shared(ground: Path, access: str) -> tuple[str, ...]:
    """Return the words that give a host the folder "data" as a file system."""
    target, source = ground / "base/train", ground / "data"
    for folder in (target, source):
        folder.mkdir()
        folder.chmod(0o777)
    return ("--shared", access, str(source), str(target))


WRITES = "import os; print(os.path.islink('{0}')); open('{0}/new', 'w').close()"


@pytest.mark.parametrize("access", ["ro", "rw"])
def test_who_is_not_root_has_a_file_system_as_it_is_shared(ground: Path, access: str) -> None:
    if as_person(ground).returncode:
        pytest.skip("this machine allows no user namespaces")

    words = shared(ground, access)
    done = as_person(ground, *words, "", "-c", WRITES.format("/opt/ml/train"))

    assert (done.returncode, done.stdout) == (int(access == "ro"), "False\n")
    assert ("Read-only file system" in done.stderr) == (access == "ro")
    assert (ground / "data/new").exists() == (access == "rw")


def test_a_file_system_that_cannot_be_mounted_is_a_link(ground: Path) -> None:
    none = 'echo 0 > /proc/sys/user/max_user_namespaces; exec setpriv --bounding-set -all --inh-caps -all "$@"'
    prefix = ("unshare", "--user", "--map-current-user", "--keep-caps", "sh", "-c", none, "sh")
    if as_person(ground).returncode:
        pytest.skip("this machine allows no user namespaces in which none are allowed")

    words = shared(ground, "ro")
    done = as_person(ground, *words, "", "-c", WRITES.format(ground / "base/train"), prefix=prefix)

    assert (done.returncode, done.stdout) == (0, "True\n")
    assert done.stderr == "[toolkit] warning: no /opt/ml of its own: a user namespace: No space left on device\n"
    assert (ground / "data/new").exists()


@pytest.mark.root
@pytest.mark.skipif(os.getuid() != 0, reason="needs to be root, to mount")
def test_a_folder_that_is_shared_read_only_is_so_below_its_mounts_too(tmp_path: Path) -> None:
    for name in ("base", "shared/inner", "target"):
        (tmp_path / name).mkdir(parents=True)
    program = f"{sys.executable} -I -S {opt_ml.MOUNTS} base --shared ro {tmp_path}/shared {tmp_path}/target"
    tries = "touch target/a; touch target/inner/b; ls target/inner"

    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", f"mount -t tmpfs none shared/inner && exec {program} /bin/sh -c '{tries}'"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.stderr.count("Read-only file system") == 2, done
    assert done.stdout == ""
