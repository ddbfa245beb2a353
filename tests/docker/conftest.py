import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docker.engine import BASE, IMAGE, PLAIN, ROOT, WHEEL, Engine, environ_of, host
from tests.train.base import Base

BED = Path(os.environ.get("TOOLKIT_BEDS", ROOT / ".beds")).absolute() / "docker"
MISSING = "needs a container engine and its images: run scripts/beds/docker (as root)"


@pytest.fixture(scope="session")
def docker_environ() -> dict[str, str]:
    """The environment that leads to the bed's engine."""
    if not (BED / "env").exists():
        pytest.skip(MISSING)
    environ = environ_of(BED)
    answers = subprocess.run(("docker", "image", "inspect", BASE), env=environ, capture_output=True)
    if answers.returncode != 0:
        pytest.skip(MISSING)
    return environ


@pytest.fixture(scope="session")
def public(docker_environ: dict[str, str]) -> Iterator[str]:
    """The public name of the base that docker/ takes: it names the bed's base, where the engine has no such image."""
    name = re.findall(r"^ARG BASE_IMAGE=(.*)", (ROOT / "docker/pytorch.Dockerfile").read_text(), re.M)[0]
    with Engine(docker_environ, "toolkit-build").named(name, BASE):
        yield name


@pytest.fixture(scope="session")
def image(docker_environ: dict[str, str], public: str) -> str:
    """The image of docker/pytorch.Dockerfile as it stands, with wheels of PyTorch for CPUs, and without a compiler."""
    engine = Engine(docker_environ, "toolkit-build")
    words = ("--build-context", f"wheels={BED / 'wheels'}", "--build-arg", "COMPILER=0")
    engine.build(IMAGE, (ROOT / "docker/pytorch.Dockerfile").read_text(), *words, context=ROOT)
    return IMAGE


@pytest.fixture(scope="session")
def wheel(docker_environ: dict[str, str], image: str) -> str:
    """An image that holds the wheel alone, of the stage that builds it (in the cache since *image*)."""
    dockerfile = (ROOT / "docker/pytorch.Dockerfile").read_text()
    Engine(docker_environ, "toolkit-wheel").build(WHEEL, dockerfile, "--target", "toolkit", context=ROOT)
    return WHEEL


@pytest.fixture(scope="session")
def trains(docker_environ: dict[str, str], image: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """*image* with code in it, as the docs call IMAGE."""
    context = tmp_path_factory.mktemp("trains")
    (context / "train.py").write_text("print('trains in the image')\n")
    dockerfile = f"FROM {image}\nCOPY train.py /opt/ml/code/\n"
    Engine(docker_environ, "toolkit-build").build("toolkit-bed/trains", dockerfile, context=context)
    return "toolkit-bed/trains"


@pytest.fixture(scope="session")
def readmes(docker_environ: dict[str, str], wheel: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of the README's image: its Dockerfile, a train.py and the wheel in dist/; the base has its name."""
    folder = tmp_path_factory.mktemp("readmes")
    dockerfile = re.findall(r"^```dockerfile\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)[0]
    (folder / "Dockerfile").write_text(dockerfile)
    (folder / "train.py").write_text("import os\nassert os.environ['SM_MODEL_DIR'] == '/opt/ml/model'\n")
    engine = Engine(docker_environ, "toolkit-readme")
    holder = engine.ask("create", "--label", engine.label, wheel, "none")
    engine.ask("cp", f"{holder}:/toolkit", str(folder / "dist"))  # What `pip wheel` makes in a clone.
    engine.clear()
    engine.build("toolkit-bed/plain", PLAIN, context=folder)
    with engine.named(dockerfile.split()[1], "toolkit-bed/plain"):
        yield folder


@pytest.fixture
def engine(docker_environ: dict[str, str], request: pytest.FixtureRequest) -> Iterator[Engine]:
    """The engine; what a test leaves there is removed."""
    engine = Engine(docker_environ, re.sub(r"[^a-z0-9]+", "-", request.node.name.lower())[:40].strip("-"))
    engine.clear()
    yield engine
    engine.clear()


@pytest.fixture
def base(tmp_path: Path) -> Base:
    """A host's /opt/ml, which any user may fill."""
    return host(tmp_path)
