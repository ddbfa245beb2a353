"""A container engine as the tests use it: images built once, containers that are gone at a test's end."""

import itertools
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.train.base import Base

ROOT = Path(__file__).parents[2]
BASE = "toolkit-bed/base:12"
IMAGE = "toolkit-bed/pytorch"
WHEEL = "toolkit-bed/wheel"
LABEL = "toolkit.test"
APT = "RUN apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends"
# A base as the official Python images: pip installs into the system's own Python.
PLAIN = f"FROM {BASE}\n{APT} python3 python3-pip && rm /usr/lib/python3*/EXTERNALLY-MANAGED\n"
DEADLINE_S = 120.0


class Ran:
    """A container that ran to its end in front of us."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code = code
        self.out = out
        self.err = err

    def __repr__(self) -> str:
        return f"<ended with {self.code}\n{self.out}\n{self.err}>"


class Engine:
    """The engine that *environ* leads to; *name* begins the names of this test's containers and networks."""

    def __init__(self, environ: Mapping[str, str], name: str) -> None:
        self.environ = dict(environ)
        self.name = name
        self._numbers = itertools.count(1)

    def ask(self, *words: str, deadline_s: float = DEADLINE_S, check: bool = True) -> str:
        """Return what `docker WORDS` prints."""
        done = self._docker(*words, deadline_s=deadline_s)
        assert done.returncode == 0 or not check, f"docker {' '.join(words)}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def run(self, *words: str, deadline_s: float = DEADLINE_S) -> Ran:
        """`docker run WORDS` to its end; the container is removed."""
        done = self._docker("run", "--label", self.label, "--rm", *words, deadline_s=deadline_s)
        return Ran(done.returncode, done.stdout, done.stderr)

    def start(self, *words: str) -> "Container":
        """`docker run --detach WORDS`."""
        name = f"{self.name}-{next(self._numbers)}"
        self.ask("run", "--detach", "--label", self.label, "--name", name, *words)
        return Container(self, name)

    def network(self) -> str:
        """Make a network and return its name."""
        name = f"{self.name}-net{next(self._numbers)}"
        self.ask("network", "create", "--label", self.label, name)
        return name

    def build(self, tag: str, dockerfile: str, *words: str, context: Path, deadline_s: float = 600.0) -> None:
        """Build *tag* from the text of a Dockerfile."""
        # Not by stdin: the client would leave a folder in /tmp for each.
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "Dockerfile"
            file.write_text(dockerfile)
            done = self._docker(
                "build", "--quiet", "--tag", tag, "--file", str(file), *words, str(context), deadline_s=deadline_s
            )
        assert done.returncode == 0, done.stdout + done.stderr

    @contextmanager
    def named(self, name: str, image: str) -> Iterator[None]:
        """Let *name* be *image*'s as well for a while, unless the engine has an image of that name."""
        exists = self._docker("image", "inspect", name, deadline_s=DEADLINE_S).returncode == 0
        if not exists:
            self.ask("tag", image, name)
        yield
        if not exists:
            self.ask("image", "rm", "--no-prune", name)

    def clear(self) -> None:
        """Remove what this test made."""
        for kind, listing in (("container", ("ps", "--all", "--quiet")), ("network", ("network", "ls", "--quiet"))):
            ids = self.ask(*listing, "--filter", f"label={self.label}").split()
            if ids:
                self.ask(*(("rm", "--force") if kind == "container" else ("network", "rm")), *ids)

    @property
    def label(self) -> str:
        return f"{LABEL}={self.name}"

    def _docker(self, *words: str, deadline_s: float) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            ("docker", *words),
            env=self.environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=deadline_s,
        )


class Container:
    """A container in the background."""

    def __init__(self, engine: Engine, name: str) -> None:
        self.engine = engine
        self.name = name

    def until(self, text: str, *, deadline_s: float = 60.0) -> None:
        """Wait until *text* is in its log."""
        ends_s = time.monotonic() + deadline_s
        while text not in self.log:
            assert self.inspect("{{.State.Running}}") == "true" or text in self.log, f"ended without {text!r}: {self}"
            assert time.monotonic() < ends_s, f"no {text!r} within {deadline_s} s: {self}"
            time.sleep(0.05)

    def wait(self, *, deadline_s: float = 180.0) -> int:
        """Return its exit code, once it has ended."""
        try:
            return int(self.engine.ask("wait", self.name, deadline_s=deadline_s))
        except subprocess.TimeoutExpired:
            processes = self.engine.ask("top", self.name, check=False)
            state = self.inspect("{{json .State}}")
            raise AssertionError(f"runs after {deadline_s} s: {state}\n{processes}\n{self}") from None

    def stop(self, within_s: int) -> float:
        """`docker stop -t`; return the seconds it took."""
        began_s = time.monotonic()
        self.engine.ask("stop", "--time", str(within_s), self.name)
        return time.monotonic() - began_s

    def execute(self, *words: str) -> Ran:
        done = self.engine._docker("exec", self.name, *words, deadline_s=DEADLINE_S)
        return Ran(done.returncode, done.stdout, done.stderr)

    def inspect(self, form: str) -> str:
        return self.engine.ask("inspect", "--format", form, self.name)

    @property
    def log(self) -> str:
        done = self.engine._docker("logs", self.name, deadline_s=DEADLINE_S)
        return done.stdout + done.stderr

    @property
    def code(self) -> int:
        return int(self.inspect("{{.State.ExitCode}}"))

    def __repr__(self) -> str:
        return f"<{self.name}, exit code {self.code}\n{self.log}>"


def environ_of(bed: Path) -> dict[str, str]:
    """Return the environment that leads to the bed's engine, which `bed`/env sets for a shell."""
    done = subprocess.run(("bash", "-c", '. "$0" && env -0', str(bed / "env")), capture_output=True, check=True)
    pairs = (entry.partition(b"=") for entry in done.stdout.split(b"\0") if entry)
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}


def document(path: Path) -> dict[str, Any]:
    files: dict[str, Any] = json.loads(path.read_bytes())
    return files


def mounted(base: Base) -> tuple[str, ...]:
    """Return the words of `docker run` that give a container *base* as its /opt/ml."""
    return ("--volume", f"{base.root}:/opt/ml", "--env", "TRAINING_JOB_NAME=boxed")


def host(folder: Path) -> Base:
    """Return a host's /opt/ml in *folder*, which any user may fill."""
    folder.mkdir(exist_ok=True)
    base = Base(folder)
    for path in (base.root, *base.root.rglob("*")):
        path.chmod(0o777)
    return base
