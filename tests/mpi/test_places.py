"""MPI where images and machines differ: no root, Debian's Open MPI, an sshd, nothing at all (checklist 50, 53)."""

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mpi.playing import Hosts
from tests.mpi.test_hosts import SUM
from tests.train.base import Base

NOBODY = 65534
# In a mount namespace: what root keeps to itself on the way to the interpreter ($1, of which $2 is needed) is opened
# for all. Then nobody's uid and groups, and the command.
AS_NOBODY = f"""
set -e
held=$(mktemp -d)
mount --bind "$2" "$held"
mount -t tmpfs -o mode=755 tmpfs "$1"
mkdir -p "$2"
mount --move "$held" "$2"
shift 2
exec setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups "$@"
"""
MPIRUN = Path("/usr/bin/mpirun")
SSHD = Path("/usr/sbin/sshd")
# Debian's Open MPI and mpi4py's wheel are no pair; that ranks start is enough here.
STARTS = "print('rank', os.environ['OMPI_COMM_WORLD_RANK'], os.environ['SM_CURRENT_HOST'], flush=True)\n"
root = pytest.mark.skipif(os.geteuid() != 0, reason="needs to be root")


def as_nobody() -> tuple[str, ...]:
    """Return what runs a command as nobody, who can reach the interpreter."""
    interpreter = Path(sys.base_prefix)
    closed = [folder for folder in reversed(interpreter.parents) if not folder.stat().st_mode & 0o001]
    if not closed:
        return "setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"
    return "unshare", "--mount", "sh", "-c", AS_NOBODY, "sh", str(closed[0]), str(interpreter)


@pytest.mark.mpi
@pytest.mark.root
@root
def test_two_hosts_need_no_root(bed: str) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # pytest's own folders are closed to others.
        hosts = Hosts(Path(folder), bed)
        hosts.program(SUM + "print('uid', os.getuid(), flush=True)\n")
        for path in (Path(folder), *Path(folder).rglob("*")):
            os.chown(path, NOBODY, NOBODY)

        done = hosts.run(as_nobody(), TMPDIR=folder)

    for rank, (host, end) in enumerate(done.items()):
        assert end.status == 0, end
        for line in (f"sum 3 {host}", f"uid {NOBODY}"):
            assert f"[1,mpirank:{rank},{host}]<stdout>:{line}".encode() in end.stdout.splitlines()


@pytest.fixture
def debian(openmpi4: str, tmp_path: Path) -> Hosts:
    """Two hosts under Debian's Open MPI."""
    if not MPIRUN.exists():
        pytest.skip("no openmpi-bin here: scripts/beds/mpi installs it as root")
    hosts = Hosts(tmp_path, openmpi4)
    hosts.environ["PATH"] = "/usr/bin:/bin"
    for base in hosts.bases.values():
        base.program("import os\n" + STARTS)
    return hosts


def check_that_both_started(hosts: Hosts, *prefix: str, **more: str) -> None:
    done = hosts.run(prefix, **more)

    for rank, (host, end) in enumerate(done.items()):
        assert end.status == 0, done
        assert f"[1,mpirank:{rank},{host}]<stdout>:rank {rank} {host}".encode() in end.stdout.splitlines()


@pytest.mark.mpi
def test_debians_open_mpi_starts_two_hosts(debian: Hosts) -> None:
    check_that_both_started(debian)


def test_without_an_mpirun_the_image_is_told_what_to_install(tmp_path: Path) -> None:
    base = Base(tmp_path)
    base.hyperparameters({"sagemaker_mpi_enabled": "true"})
    base.program("print('never')\n")

    done = base.train(PATH=str(base.folder))

    assert done.status == 78
    assert "expected an mpirun on PATH for distribution mpi, found no mpirun on PATH" in str(done.failure)


@contextlib.contextmanager
def cell(keys: Path) -> Iterator[tuple[str, ...]]:
    """Yield what runs a command in namespaces of our own: a network, where nobody has port 22, and a /root/.ssh that
    is *keys*."""
    script = f"ip link set lo up; mkdir -p /root/.ssh; mount --bind {keys} /root/.ssh; echo ready; exec sleep 600"
    command = ("unshare", "--net", "--mount", "sh", "-c", script)
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"ready\n"
            yield "nsenter", f"--target={process.pid}", "--net", "--mount"
        finally:
            process.kill()


needs_sshd = pytest.mark.skipif(
    not SSHD.exists(), reason="no openssh-server here: scripts/beds/mpi installs it as root"
)


@pytest.fixture
def inside(debian: Hosts, tmp_path: Path) -> Iterator[tuple[str, ...]]:
    """Return the words that run a command where sshd has a port 22 and keys; hosts have addresses there."""
    keys = tmp_path / "keys"
    keys.mkdir(mode=0o700)
    subprocess.run(("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", keys / "id_ed25519"), check=True)
    (keys / "authorized_keys").write_bytes((keys / "id_ed25519.pub").read_bytes())
    debian.environ["TOOLKIT_HOST_ADDRESSES"] = "algo-1=127.0.0.1,algo-2=127.0.0.2"
    with cell(keys) as prefix:
        yield prefix


@pytest.mark.mpi
@pytest.mark.root
@root
@needs_sshd
def test_an_sshd_will_do_too(debian: Hosts, inside: tuple[str, ...]) -> None:
    check_that_both_started(debian, *inside, TOOLKIT_MPI_AGENT="ssh")


@pytest.mark.mpi
@pytest.mark.root
@root
@needs_sshd
def test_lines_that_mpirun_relays_name_the_host_whose_address_it_knows(debian: Hosts, inside: tuple[str, ...]) -> None:
    for base in debian.bases.values():
        base.program("import os\nprint('rank', os.environ['OMPI_COMM_WORLD_RANK'], flush=True)\n")

    done = debian.run(inside, TOOLKIT_MPI_AGENT="ssh", TOOLKIT_RANK_SHIM="off")

    assert [end.status for end in done.values()] == [0, 0], done
    for rank, host in enumerate(debian.bases):
        assert f"[1,mpirank:{rank},{host}]<stdout>:rank {rank}".encode() in done["algo-1"].stdout.splitlines(), done
