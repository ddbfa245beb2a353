"""The docker lines of README.md and docs/: commands in code blocks that build an image or start a container, and builds
within sentences."""

import re
from pathlib import Path

from tests.docker.engine import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# `toolkit run --backend docker` is not among them: tests/docker/test_run.py.
DOCKER = re.compile(r"^(?:[^#\n]*\| *)?docker (?:build|run|compose) ", re.M)


def blocks(text: str) -> list[str]:
    """Return the code blocks of a page, fenced or indented, each command on one line."""
    fenced = re.findall(r"^```(?:sh|bash|console|shell)?\n(.*?)^```", text, re.M | re.S)
    rest = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    indented = re.findall(r"(?<=\n\n)((?:    .*\n)+)", rest)
    code = [*fenced, *(re.sub(r"^    ", "", block, flags=re.M) for block in indented)]
    return [re.sub(r" *\\\n *", " ", block) for block in code]


def docker_blocks(text: str) -> list[str]:
    """Return the blocks with docker lines, less the lines for other platforms that stand beside them, and the builds
    that stand within a sentence."""
    commands = [block for block in blocks(text) if DOCKER.search(block)]
    commands += [f"{line}\n" for line in re.findall(r"`(docker build [^`\n]+)`", text)]
    return ["".join(line for line in block.splitlines(True) if re.search("docker|compose", line)) for block in commands]


def runnable(block: str, image: str, label: str, wheels: Path) -> str:
    """Return *block* as a test runs it: *image* for IMAGE, containers and images that are told from others, CPU wheels.

    A container engine here has no GPU, and refuses `--gpus`.
    """
    for tag in re.findall(r"^docker build\b.* -t (\S+)", block, re.M):
        block = re.sub(rf"(?<=\s){re.escape(tag)}(?=\s|$)", f"toolkit-bed/{tag}", block, flags=re.M)
    block = re.sub(r"\bIMAGE\b", image, block)
    block = re.sub(r"\bdocker build ", f"docker build --quiet --build-context wheels={wheels} ", block)
    block = re.sub(r"\bdocker run ", f"docker run --label {label} ", block)
    return re.sub(r" --gpus \S+", "", block)
