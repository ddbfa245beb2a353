"""Every docker line of README.md and docs/ works as it stands there, on bases that have their public names."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docker.conftest import BED
from tests.docker.engine import ROOT, Engine, host
from tests.docker.pages import PAGES, blocks, docker_blocks, runnable

JOB = 'script = "train.py"\nname = "{name}"\nhosts = 2\n'
BLOCKS = [
    pytest.param(
        block,
        id=f"{page.relative_to(ROOT)}: {block.splitlines()[0][:60]}",
        marks=[pytest.mark.long] if "DEVICE=cpu" in block else [],  # A second image of the same Dockerfile.
    )
    for page in PAGES
    for block in docker_blocks(page.read_text())
]


BUILD = "docker build -t a . && docker run a\n"
PAGE = """one:

    docker run A \\
        B

two:

```sh
docker build .
```

    a | kubectl
    a | docker compose -f - up

`docker build -t a . && docker run a` trains.
"""


def test_blocks_are_found_in_both_forms() -> None:
    assert blocks(PAGE)[1:] == ["docker run A B\n", "a | kubectl\na | docker compose -f - up\n"]
    assert docker_blocks(PAGE) == ["docker build .\n", "docker run A B\n", "a | docker compose -f - up\n", BUILD]


def test_a_line_is_changed_in_what_a_machine_without_gpus_and_registry_needs_alone(tmp_path: Path) -> None:
    block = "docker build -t mine --build-arg A=mine .\ndocker run --gpus all --rm -v $PWD/mine:/x mine train\n"

    assert runnable(block, "x", "l=1", Path("/w")) == (
        "docker build --quiet --build-context wheels=/w -t toolkit-bed/mine --build-arg A=mine .\n"
        "docker run --label l=1 --rm -v $PWD/mine:/x toolkit-bed/mine train\n"
    )


@pytest.mark.docker
@pytest.mark.parametrize("block", BLOCKS)
def test_a_docker_line_of_the_docs_works_as_written(
    block: str, engine: Engine, trains: str, readmes: Path, tmp_path: Path
) -> None:
    """`readmes` is the folder in which the README's own lines are typed; lines with -f are typed in a clone."""
    folder = ROOT if " -f docker/" in block else readmes if "docker build" in block else desk(tmp_path, engine.name)
    environ = {**engine.environ, "COMPOSE_PROJECT_NAME": engine.name}
    environ["PATH"] = f"{Path(sys.executable).parent}:{environ['PATH']}"
    script = runnable(block, trains, engine.label, BED / "wheels")

    done = subprocess.run(
        ("sh", "-ec", script), cwd=folder, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=600,
    )  # fmt: skip
    if "docker compose" in script:
        down = ("docker", "compose", "--project-name", engine.name, "down", "--timeout", "0")
        subprocess.run(down, env=environ, capture_output=True, timeout=120, check=True)

    assert done.returncode == 0, script + done.stdout + done.stderr


def test_the_docs_have_such_lines() -> None:
    lines = "".join(block.values[0] for block in BLOCKS)  # type: ignore[misc]

    assert re.search(r"^docker build -f docker/pytorch.Dockerfile -t \S+ \.$", lines, re.M)
    assert re.search(r"^docker build .*--build-arg DEVICE=cpu", lines, re.M)
    assert re.search(r"^docker run --gpus all ", lines, re.M)
    assert "| docker compose" in lines
    assert re.search(r"^docker build -t \S+ \.", lines, re.M), "the README's"


def desk(folder: Path, name: str) -> Path:
    """Return a folder with what the lines name: /opt/ml as ml, a channel, a job file with its script."""
    host_base = host(folder / "host")
    for name in ("model", "output"):
        (host_base.root / name).mkdir(exist_ok=True)
        (host_base.root / name).chmod(0o777)
    (folder / "ml").symlink_to(host_base.root)
    (folder / "digits").mkdir()
    (folder / "model").mkdir()
    (folder / "train.py").write_text("print('trains by Compose')\n")
    (folder / "job.toml").write_text(JOB.format(name=name))
    return folder
