"""The image: what is in it, what it starts, and as whom it runs."""

import re
import zipfile
from pathlib import Path

import pytest

from tests.docker.engine import Engine, mounted
from tests.train.base import SEES, Base

pytestmark = pytest.mark.docker


def test_the_toolkit_adds_under_32_mb_with_its_extras_and_no_compiler(engine: Engine, image: str) -> None:
    layers = engine.ask("history", "--no-trunc", "--human=false", "--format", "{{.Size}} {{.CreatedBy}}", image)

    (size,) = [int(line.split()[0]) for line in layers.splitlines() if "/toolkit/*.whl" in line]
    compilers = engine.run(image, "sh", "-c", "command -v gcc cc g++ clang as ld make")

    assert 0 < size < 32_000_000  # The toolkit itself 11.5 MB, its extras 17 (docs/images.md).
    assert (compilers.code, compilers.out) == (127, "")


def test_the_labels_and_the_health_check_are_there(engine: Engine, image: str) -> None:
    labels = engine.ask("image", "inspect", "--format", "{{json .Config.Labels}} {{.Config.Healthcheck.Test}}", image)

    assert '"org.opencontainers.image.version"' in labels
    assert "[CMD toolkit health]" in labels


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("bash", "-c", "echo $$ of bash"), "1 of bash"),
        (("python", "-c", "import os, toolkit; print(os.getpid(), 'of python')"), "1 of python"),
        (("toolkit", "--version"), "0."),
    ],
)
def test_any_command_is_started_as_it_is(engine: Engine, image: str, words: tuple[str, ...], says: str) -> None:
    ran = engine.run(image, *words)

    assert ran.code == 0, ran
    assert says in ran.out


@pytest.mark.parametrize("words", [(), ("train",)])
def test_train_is_pid_1_and_its_exit_code_is_the_containers(
    engine: Engine, image: str, base: Base, words: tuple[str, ...]
) -> None:
    base.program("import os, sys\nprint('child of', os.getppid())\nsys.exit(7)\n")

    ran = engine.run(*mounted(base), image, *words)

    assert ran.code == 7, ran
    assert "child of 1\n" in ran.out
    assert (base.output / "failure").read_text().startswith("ExecuteUserScriptError:\nExitCode 7")


def test_train_stays_ours_where_pip_brings_another_later(
    engine: Engine, image: str, base: Base, tmp_path: Path
) -> None:
    folder = tmp_path / "context"
    brings_train(folder, "sagemaker_training")
    later = f"FROM {image}\nCOPY *.whl /later/\nRUN pip install --no-index --no-deps /later/*.whl\n"
    engine.build("toolkit-bed/later", later, context=folder)
    base.program("print('trained by', __import__('os').environ['SM_HOSTS'])\n")

    ran = engine.run(*mounted(base), "toolkit-bed/later")
    checked = engine.run(*mounted(base), "toolkit-bed/later", "toolkit", "check")
    without = engine.run(*mounted(base), "toolkit-bed/later", "sh", "-c", "PATH=/opt/venv/bin:$PATH; toolkit check")

    assert ran.code == 0, ran
    assert "Reporting training SUCCESS" in ran.out + ran.err
    assert (checked.code, "which starts sagemaker_training" in checked.out) == (0, False), checked
    assert without.code == 78, without
    assert "train on PATH is /opt/venv/bin/train, which starts sagemaker_training" in " ".join(without.out.split())


@pytest.mark.parametrize("user", ["0:0", "1000:1000", "4242:4242"])
def test_root_and_users_that_the_image_does_not_know_train(engine: Engine, image: str, base: Base, user: str) -> None:
    base.program("import os\nopen(os.environ['SM_MODEL_DIR'] + '/model', 'w').write(str(os.getuid()))\n")

    ran = engine.run("--user", user, *mounted(base), image, "train")

    assert ran.code == 0, ran
    assert (base.root / "model/model").read_text() == user.partition(":")[0]
    assert (base.output / "success").exists()


def test_a_read_only_root_is_enough_with_tmp_and_opt_ml(engine: Engine, image: str, base: Base) -> None:
    base.program(SEES)

    ran = engine.run("--read-only", "--tmpfs", "/tmp", "--user", "1000:1000", *mounted(base), image, "train")

    assert ran.code == 0, ran
    assert (base.output / "data/seen.json").exists()


def test_without_any_network_a_job_of_one_host_runs(engine: Engine, image: str, base: Base) -> None:
    base.program(SEES)

    ran = engine.run("--network", "none", *mounted(base), image, "train")

    assert ran.code == 0, ran


def test_check_looks_at_the_job_without_starting_it(engine: Engine, image: str, base: Base) -> None:
    base.program("raise SystemExit('it was started')\n")

    ran = engine.run("--shm-size", "2g", *mounted(base), image, "toolkit", "check")

    assert ran.code == 0, ran
    assert "train.py" in ran.out
    assert "it was started" not in ran.out + ran.err
    assert re.search(r"/dev/shm +.*2\.0 GiB|2 GiB", ran.out), ran.out


def test_the_health_of_a_job_is_that_of_its_train(engine: Engine, image: str, base: Base) -> None:
    base.program("import time\nprint('computing', flush=True)\ntime.sleep(600)\n")
    box = engine.start("--health-interval", "1s", "--health-start-period", "0s", *mounted(base), image, "train")
    box.until("computing")

    healthy = box.execute("toolkit", "health")
    # Stopped from outside, as PID 1 cannot be from within. Its last beat is set to when the machine started (the file's
    # time is of the monotonic clock).
    engine.ask("kill", "--signal", "STOP", box.name)
    box.execute("sh", "-c", "touch -d @0 /tmp/toolkit-0-*/run-1-*/pulse")
    hung = box.execute("toolkit", "health")

    assert (healthy.code, healthy.out) == (0, "")
    assert (hung.code, "train (pid 1) has not moved for " in hung.out) == (1, True), hung


def brings_train(folder: Path, package: str) -> None:
    """Write a wheel of *package* whose installation puts a `train` that fails beside Python."""
    folder.mkdir()
    place = f"{package}-9.0.dist-info"
    files = {
        f"{package}/__init__.py": "def main():\n    raise SystemExit('the wrong train')\n",
        f"{place}/METADATA": f"Metadata-Version: 2.1\nName: {package}\nVersion: 9.0\n",
        f"{place}/WHEEL": "Wheel-Version: 1.0\nGenerator: a test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{place}/entry_points.txt": f"[console_scripts]\ntrain = {package}:main\n",
    }
    files[f"{place}/RECORD"] = "".join(f"{name},,\n" for name in (*files, f"{place}/RECORD"))
    with zipfile.ZipFile(folder / f"{package}-9.0-py3-none-any.whl", "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
