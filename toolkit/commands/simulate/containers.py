"""Runs hosts as containers: makes the arguments of `docker run` for each host, and creates and removes the network.

The client `docker run` stays running for each host: its streams and its exit code are the container's, and it forwards
SIGTERM. So a contained host is a process, too, for `toolkit run`; only SIGKILL goes through the engine.
"""

import os
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from toolkit.commands.simulate.documents import BASE, HostSetup
from toolkit.errors import PlatformError
from toolkit.job.file.job_file import JobFile
from toolkit.train.supervise.children import fork_call
from toolkit.train.supervise.kernel import prctl

LABEL = "toolkit.job-dir"
SHM_BYTES = 1 << 30  # Docker's default of 64 MiB is too small for data loaders and NCCL.
WITHIN_S = 60.0
KILL_S = 10.0


def name_of(job_file: JobFile, host: str) -> str:
    """Return the name of *host*'s container."""
    return f"{job_file.name}-{host}"


def argv(
    job_file: JobFile, setup: HostSetup, environ: Mapping[str, str], mounts: Sequence[str], *, gpus: str, user: str
) -> tuple[str, ...]:
    """Return the command that starts *setup*'s container.

    *mounts*: "PATH:PATH:ro" besides /opt/ml; *gpus*: from `gpus_for`; *user*: from `container_user`.
    """
    words = ["docker", "run", "--name", name_of(job_file, setup.host), "--label", f"{LABEL}={job_file.run.job_dir}"]
    words += ["--network", network_of(job_file), "--network-alias", setup.host, "--hostname", setup.host]
    words += ["--log-driver", "none", "--shm-size", str(job_file.run.shm_bytes or SHM_BYTES)]
    if job_file.run.memory_bytes:
        # No swap: a process that needs more memory must fail.
        words += ["--memory", str(job_file.run.memory_bytes), "--memory-swap", str(job_file.run.memory_bytes)]
    if gpus:
        words += ["--gpus", gpus]
    if user:
        words += [
            "--user",
            user,
            "--env",
            "HOME=/tmp",
        ]  # The image does not know the user: caches would go to "/".
    for mount in (f"{setup.base}:{BASE}", *mounts):
        words += ["--volume", mount]
    for name, value in environ.items():
        words += ["--env", f"{name}={value}"]
    assert job_file.run.image is not None
    return (*words, job_file.run.image, "train")


def container_user() -> str:
    """Return the user (UID:GID) that a container runs as, so that its files belong to the person who runs the job.

    For root return "", the image's own user, as on the platform.
    """
    return f"{os.getuid()}:{os.getgid()}" if os.getuid() else ""


def network_of(job_file: JobFile) -> str:
    """Return the name of the job's own network."""
    return f"toolkit-{job_file.name}"


def gpus_for(host: int, hosts: int, count: int) -> str:
    """Return the value of `--gpus` for host number *host* of *hosts* on a machine with *count* GPUs: its share of them.

    Every host gets all GPUs if there are fewer GPUs than hosts.
    """
    if not count:
        return ""
    share = count // hosts
    if hosts == 1 or not share:
        return "all"
    return '"device=' + ",".join(str(number) for number in range(host * share, (host + 1) * share)) + '"'


def gpu_count() -> int:
    """Return the number of NVIDIA GPUs of this machine, counted by their devices."""
    return sum(1 for device in Path("/dev").glob("nvidia*") if re.fullmatch(r"nvidia\d+", device.name))


def image_with_digest(image: str, user_environ: Mapping[str, str]) -> str:
    """Return "IMAGE@DIGEST" as the engine knows *image* now; *image* alone if it has to pull it first, or does not
    answer."""
    words = ("docker", "image", "inspect", "--format", "{{.Id}}", image)
    try:
        answer = subprocess.run(
            words,
            env=dict(user_environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=WITHIN_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return image
    digest = answer.stdout.strip()
    return f"{image}@{digest}" if re.fullmatch(r"sha256:[0-9a-f]{64}", digest) and "@" not in image else image


class Engine:
    """Makes the job's network before the job and removes everything after it. *user_environ*: the person's
    environment."""

    def __init__(self, job_file: JobFile, user_environ: Mapping[str, str]) -> None:
        self._job_file = job_file
        self._user_environ = user_environ

    def __enter__(self) -> "Engine":
        """Remove the containers and network that a killed run in this folder left, and create the network.

        Raises:
            PlatformError: docker is missing or refuses, or the engine has a job of this name from another folder.
        """
        self._clear()
        name = network_of(self._job_file)
        if self._run("network", "ls", "--quiet", "--filter", f"name=^{name}$"):
            raise PlatformError(
                f"expected no other job named {self._job_file.name} on this engine, found its network {name}",
                where="toolkit run",
                hint="Give this job another --name; or, if that job has ended, remove what it left:"
                f" docker ps --filter network={name}, docker network rm {name}.",
            )
        self._run("network", "create", "--label", self._label, name)
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._clear()
        except PlatformError:
            pass  # The job's result does not change; the next run in this folder removes the rest.

    def renew(self) -> None:
        """Remove the containers of an interrupted start, whose names the next start takes.

        Raises:
            PlatformError: the engine refuses.
        """
        self._clear_containers()

    def short_of_memory(self, host: str) -> bool:
        """Return whether the kernel killed a process in *host*'s container because memory ran out."""
        try:
            answer = self._run("inspect", "--format", "{{.State.OOMKilled}}", name_of(self._job_file, host))
        except PlatformError:
            return False  # The container was never created.
        return answer.strip() == "true"

    @property
    def _label(self) -> str:
        return f"{LABEL}={self._job_file.run.job_dir}"

    def _clear_containers(self) -> None:
        containers = self._run("ps", "--all", "--quiet", "--filter", f"label={self._label}").split()
        if containers:
            self._run("rm", "--force", *containers)

    def _clear(self) -> None:
        self._clear_containers()
        networks = self._run("network", "ls", "--quiet", "--filter", f"label={self._label}").split()
        if networks:
            self._run("network", "rm", *networks)

    def _run(self, *words: str) -> str:
        try:
            result = subprocess.run(
                ("docker", *words),
                env=dict(self._user_environ),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=WITHIN_S,
                check=True,
            )
        except FileNotFoundError:
            hint = "Install docker, or leave --backend out: hosts are processes then."
            raise PlatformError(
                "expected the program docker on PATH, found none", where="toolkit run", hint=hint
            ) from None
        except subprocess.TimeoutExpired:
            raise PlatformError(f"no answer within {WITHIN_S:g} s", where=f"docker {words[0]}") from None
        except subprocess.CalledProcessError as error:
            message = error.stderr.strip() or f"exit code {error.returncode}"
            # The engine's own errors contain this. All others come from the client, which did not reach an engine.
            hint = "" if "response from daemon" in message else "Is the engine running (docker info)?"
            raise PlatformError(message, where=f"docker {words[0]}", hint=hint) from None
        return result.stdout


def kill(name: str, user_environ: Mapping[str, str]) -> None:
    """Have the engine kill all processes in the container. A child process does it, and this one does not wait for it.

    The child tries for KILL_S, because a container that is still starting does not exist yet.
    """

    def insist() -> int:
        ends_s = time.monotonic() + KILL_S
        while time.monotonic() < ends_s:
            result = subprocess.run(
                ("docker", "kill", "--signal", "KILL", name), env=dict(user_environ), capture_output=True, check=False
            )
            if result.returncode == 0:
                return 0
            time.sleep(0.1)
        return 1

    fork_call(insist, prctl=prctl())
