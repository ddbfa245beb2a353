import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docker.engine import BASE, IMAGE, ROOT, Engine, environ_of, host
from tests.walk.base import Base

BED = Path(os.environ.get("TOOLKIT_BEDS", ROOT / ".beds")).absolute() / "docker"
MISSING = "needs a container engine and its images: run scripts/beds/docker (as root)"


@pytest.fixture(scope="session")
def found() -> dict[str, str]:
    """The environment that leads to the bed's engine."""
    if not (BED / "env").exists():
        pytest.skip(MISSING)
    environ = environ_of(BED)
    answers = subprocess.run(("docker", "image", "inspect", BASE), env=environ, capture_output=True)
    if answers.returncode != 0:
        pytest.skip(MISSING)
    return environ


@pytest.fixture(scope="session")
def image(found: dict[str, str]) -> str:
    """The image of docker/pytorch.Dockerfile, built from the base made on the spot."""
    engine = Engine(found, "toolkit-build")
    context = f"wheels={BED / 'wheels'}"
    words = ("--build-arg", f"BASE_IMAGE={BASE}", "--build-context", context)
    engine.build(IMAGE, (ROOT / "docker/pytorch.Dockerfile").read_text(), *words, context=ROOT)
    return IMAGE


@pytest.fixture
def engine(found: dict[str, str], request: pytest.FixtureRequest) -> Iterator[Engine]:
    """The engine; what a test leaves there is removed."""
    engine = Engine(found, re.sub(r"[^a-z0-9]+", "-", request.node.name.lower())[:40].strip("-"))
    engine.clear()
    yield engine
    engine.clear()


@pytest.fixture
def base(tmp_path: Path) -> Base:
    """A host's /opt/ml, which any user may fill."""
    return host(tmp_path)
