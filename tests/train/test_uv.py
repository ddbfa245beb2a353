"""uv installs the requirements where it is on PATH: the uv of the group "lock", from wheels made here."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.train.base import Base
from tests.train.test_install import Image, slow

UV = Path(sys.executable).parent / "uv"
pytestmark = pytest.mark.skipif(not UV.exists(), reason="needs uv beside this interpreter (pip install uv)")


@pytest.fixture
def image(base: Base) -> Image:
    image = Image(base)
    image.hide_pip()
    return image


def test_uv_installs_for_the_script_and_a_line_says_so(image: Image) -> None:
    image.wheel("needed", text="word = 'the requirement'\n")
    image.base.program("needed\n", "requirements.txt")
    image.base.program("import needed\nprint(needed.word)\n")

    done = image.train()

    assert (done.status, done.stdout.splitlines()[-1]) == (0, b"the requirement"), done
    assert f"[toolkit] uv installs the packages ({UV})" in done.log
    assert (image.site / "needed.py").exists()


def none_found(_: Image) -> str:
    return "needed==1.0\n"


def conflict(image: Image) -> str:
    image.wheel("one", metadata="Requires-Dist: needed==1.0\n")
    image.wheel("two", metadata="Requires-Dist: needed==2.0\n")
    return "one\ntwo\n"


def wrong_hash(image: Image) -> str:
    image.wheel("needed")
    return f"needed==1.0 --hash=sha256:{'0' * 64}\n"


def failed_build(image: Image) -> str:
    return f"{slow(image.base.folder / 'slow', 'raise RuntimeError(0)')}\n"


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (none_found, "No solution found when resolving dependencies: Because needed was not found"),
        (conflict, "No solution found when resolving dependencies: Because "),
        (wrong_hash, "a hash of requirements.txt differs from the package's: Failed to download `needed==1.0`"),
        (failed_build, "the build said last: RuntimeError: 0"),
    ],
)
def test_uvs_errors_are_causes_as_pips_are(image: Image, broken: Callable[[Image], str], reason: str) -> None:
    image.wheel("other")
    image.base.program(broken(image), "requirements.txt")
    image.base.program("print('the script ran')\n")

    done = image.train()

    assert b"the script ran" not in done.stdout
    assert done.failure is not None
    assert done.failure.startswith("InstallRequirementsError:")
    assert reason in done.failure[:600]


def test_a_hash_of_one_package_asks_for_those_of_all_as_with_pip(image: Image) -> None:
    wheel = image.wheel("needed")
    image.wheel("other")
    import hashlib

    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    image.base.program(f"needed==1.0 --hash=sha256:{digest}\nother==1.0\n", "requirements.txt")
    image.base.program("")

    done = image.train()

    assert done.failure is not None
    assert "all requirements must have a hash, but none were provided for: other==1.0" in done.failure
