"""Three lines make an image of your own (docs/images.md), on bases that are not ours."""

import re
from pathlib import Path

import pytest

from tests.docker.engine import APT, BASE, PLAIN, ROOT, Engine, mounted
from tests.train.base import Base

pytestmark = pytest.mark.docker

# Bases, as others make them: the interpreter is the only thing of Python's they have.
VENV = f"FROM {BASE}\n{APT} python3 python3-venv\n"
BASES = {
    "plain": PLAIN,
    "venv": VENV + "RUN python3 -m venv /venv\nENV PATH=/venv/bin:$PATH\n",
    # As conda's: a prefix of its own that nothing put on PATH.
    "prefix": VENV + "RUN python3 -m venv --copies /opt/conda\n",
    "no-bash": VENV + "RUN python3 -m venv /venv && rm /bin/bash\nENV PATH=/venv/bin:$PATH\n",
}
SCRIPT = """
import os, shutil, sys
print("pid 1 is", os.getppid(), "bash is", shutil.which("bash"), "python is", sys.executable)
open(os.environ["SM_MODEL_DIR"] + "/model", "w").write("trained")
"""


def three_lines(page: str) -> str:
    """Return the Dockerfile under "Three lines" in docs/images.md, less its FROM."""
    match = re.search(r"^    FROM your-image\n((?:    .*\n)+)", page, re.M)
    assert match is not None
    return re.sub(r"^    ", "", match[1], flags=re.M)


@pytest.mark.parametrize(
    "kind", ["plain", "prefix", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("venv", "no-bash"))]
)
def test_three_lines_make_an_image_that_trains(
    engine: Engine, wheel: str, base: Base, tmp_path: Path, kind: str
) -> None:
    context = tmp_path / "context"
    context.mkdir()
    (context / "train.py").write_text(SCRIPT)
    lines = three_lines((ROOT / "docs/images.md").read_text())
    # The wheel is not on an index yet; and a prefix that is not on PATH has its own pip and train.
    prefix = "/opt/conda/bin/" if kind == "prefix" else ""
    wheels = f"--mount=type=bind,from={wheel},source=/toolkit,target=/toolkit"
    lines = lines.replace(
        "RUN pip install container-training-toolkit", f"RUN {wheels} {prefix}pip install /toolkit/*.whl"
    )
    lines = lines.replace('["train"]', f'["{prefix}train"]')
    engine.build(f"toolkit-bed/own-{kind}", BASES[kind] + lines, context=context)

    # The code is the image's own; the platform mounts documents and takes what is in /opt/ml/model.
    (base.root / "model").mkdir()
    mounts = [word for part in ("input", "model") for word in ("--volume", f"{base.root}/{part}:/opt/ml/{part}")]
    box = engine.start(*mounts, f"toolkit-bed/own-{kind}", "train")
    status = box.wait()

    assert status == 0, box
    assert (base.root / "model/model").read_text() == "trained"
    assert "pid 1 is 1 " in box.log
    assert ("bash is None" in box.log) == (kind == "no-bash")
    assert ("python is /opt/conda/bin/python" in box.log) == (kind == "prefix")


def test_an_image_that_is_started_by_a_shell_trains_too(engine: Engine, image: str, base: Base) -> None:
    """AWS's images have bash as PID 1, which runs `train` as its child (start_with_right_hostname.sh)."""
    base.program("import sys\nsys.exit(5)\n")

    ran = engine.run(
        "--entrypoint", "bash", *mounted(base), image, "-c", '"$@"; code=$?; echo after; exit $code', "-", "train"
    )

    assert (ran.code, "after" in ran.out) == (5, True), ran


# The form of what SageMaker's SDK v3 sends: own words, the same steps (traps, python3 by PATH, cd, eval of a command).
SM_TRAIN = """#!/bin/bash
set -e
trap 'code=$?; echo "ended with $code" >> /opt/ml/output/failure; exit $code' ERR
python=$(command -v python3 || command -v python)
cat /opt/ml/input/config/resourceconfig.json
cd /opt/ml/input/data/code
command=$(cat <<'END'
python3 train.py --epochs "3 or 4"
END
)
eval "$command"
echo done
"""
SAVES = """
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
print("ready", flush=True)
signal.sigwait({signal.SIGTERM})
print("saved", flush=True)
"""


def test_model_trainers_own_script_is_left_alone(engine: Engine, image: str, base: Base) -> None:
    drivers, code = base.root / "input/data/sm_drivers", base.root / "input/data/code"
    drivers.mkdir(parents=True)
    code.mkdir()
    (drivers / "sm_train.sh").write_text(SM_TRAIN)
    (code / "train.py").write_text("import os, sys\nprint(sys.argv[1:], [n for n in os.environ if 'TOOLKIT' in n])\n")
    start = "chmod +x /opt/ml/input/data/sm_drivers/sm_train.sh && /opt/ml/input/data/sm_drivers/sm_train.sh"

    ran = engine.run("--entrypoint", "/bin/bash", *mounted(base), image, "-c", start)

    assert ran.code == 0, ran
    assert "['--epochs', '3 or 4'] []" in ran.out
    assert ran.out.endswith("done\n")


@pytest.mark.parametrize(("command", "is_heard"), [("exec train", True), ("train", False)])
def test_a_job_of_model_trainer_hears_a_stop_if_its_command_is_exec_train(
    engine: Engine, image: str, base: Base, command: str, is_heard: bool
) -> None:
    drivers, code = base.root / "input/data/sm_drivers", base.root / "input/data/code"
    drivers.mkdir(parents=True)
    code.mkdir()
    base.hyperparameters(program=None)
    (drivers / "sourcecode.json").write_text(
        f'{{"entry_script": "train.py", "source_dir": "src", "command": "{command}"}}'
    )
    (drivers / "distributed.json").write_text("{}")
    (drivers / "sm_train.sh").write_text(SM_TRAIN.replace('python3 train.py --epochs "3 or 4"', command))
    (code / "train.py").write_text(SAVES)
    script = "/opt/ml/input/data/sm_drivers/sm_train.sh"

    box = engine.start("--entrypoint", "/bin/bash", *mounted(base), image, "-c", f"chmod +x {script} && {script}")
    box.until("ready")
    box.stop(30 if is_heard else 2)

    assert ("saved" in box.log, "PID 1 of this container is a shell" in box.log) == (is_heard, not is_heard)
    assert box.code == (0 if is_heard else 137)


def test_train_runs_what_model_trainer_sent(engine: Engine, image: str, base: Base) -> None:
    drivers, code = base.root / "input/data/sm_drivers", base.root / "input/data/code"
    drivers.mkdir(parents=True)
    code.mkdir()
    base.hyperparameters({"lr": "0.1", "deep": "true"}, program=None)
    (drivers / "sourcecode.json").write_text('{"entry_script": "train.py", "source_dir": "src", "command": null}')
    (drivers / "distributed.json").write_text("{}")
    (code / "train.py").write_text("import os, sys\nprint(sys.argv[1:], os.environ['SM_HOST_COUNT'])\n")

    ran = engine.run(*mounted(base), image, "train")

    assert ran.code == 0, ran
    assert "['--lr', '0.1', '--deep', 'true'] 1" in ran.out
