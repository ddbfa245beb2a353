"""mpirun's remote agent and the waiter on other hosts, as far as they need no mpirun (tests/mpi has the rest)."""

import subprocess
import sys
from pathlib import Path

import pytest

from toolkit.rank.hook import mpi_agent
from toolkit.rank.hook.mpi_agent import localize


def test_without_an_sshd_the_image_is_told_what_to_install(tmp_path: Path) -> None:
    sshd = tmp_path / "sshd"

    done = subprocess.run(
        (sys.executable, "-I", "-S", str(mpi_agent.__file__), "--serve", "sshd", str(sshd)),
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.returncode == 78
    assert done.stderr.startswith(f"SSH daemon not found: {sshd} is not in this image")
    assert "apt-get install openssh-server" in done.stderr


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (b'orted -mca plm_rsh_agent "/tmp/run-1/agent" -mca x 1', b'orted -mca plm_rsh_agent "/bin/sh" -mca x 1'),
        (b"prted --prtemca plm_ssh_agent /tmp/run-1/agent", b"prted --prtemca plm_ssh_agent /bin/sh"),
        (b"hydra_pmi_proxy --control-port algo-1:3 --rmk user", b"hydra_pmi_proxy --control-port algo-1:3 --rmk user"),
    ],
)
def test_a_daemon_is_not_told_of_an_agent_that_only_the_leader_has(command: bytes, expected: bytes) -> None:
    assert localize(command) == expected
