"""An MPIJob as in its pods: real `train` processes with the operator's variables and hostfile, and real mpiruns."""

import contextlib
import json
from pathlib import Path

import pytest

from tests.mpi.playing import BEDS, MPI, python
from tests.ports import free_ports
from tests.train.base import Base, Done
from tests.train.live import live

pytestmark = pytest.mark.mpi
RECORDED = Path(__file__).parents[2] / "data/platforms"
PODS = {
    "digits-launcher": "kubeflow_mpi_job",
    "digits-worker-0": "kubeflow_mpi_job_worker",
    "digits-worker-1": "kubeflow_mpi_job_worker",
}
SUM = "print('sum', world.allreduce(rank + 1), size, os.environ['SM_CURRENT_HOST'], flush=True)\n"


class MpiJob:
    """Three pods on this machine. In Kubernetes' place the test gives them their addresses and the hostfile."""

    def __init__(self, folder: Path, bed: str) -> None:
        if not python(bed).exists():
            pytest.skip(f"no {BEDS}/{bed}: scripts/beds/mpi makes it")
        self._command = (str(python(bed)), "-m", "toolkit.cli.main", "train")
        self.bases = {pod: Base(folder / pod) for pod in PODS}
        launcher = "kubeflow_mpi_job_mpich" if bed == "mpich" else "kubeflow_mpi_job"
        self._recorded = {
            pod: json.loads((RECORDED / f"{launcher if pod == 'digits-launcher' else name}.json").read_bytes())
            for pod, name in PODS.items()
        }
        recorded = self._recorded["digits-launcher"]
        self.hosts: list[str] = recorded["place"]["hosts"]
        self.slots: int = recorded["place"]["processes_per_host"]
        file = folder / "hostfile"
        file.write_text(recorded["hostfile"])
        port, link_port = free_ports(2)
        variable = "HYDRA_HOST_FILE" if bed == "mpich" else "OMPI_MCA_orte_default_hostfile"
        self._environ = {
            "PATH": f"{python(bed).parent}:/usr/bin:/bin",
            "OMP_NUM_THREADS": "1",
            "MASTER_PORT": str(port),
            "TOOLKIT_PLATFORM": "kubeflow",
            "TOOLKIT_LINK_PORT": str(link_port),
            "TOOLKIT_HOST_ADDRESSES": ",".join(f"{host}=127.0.0.1" for host in self.hosts),
            variable: str(file),
        }

    def run(self, program: str, **more: str) -> dict[str, Done]:
        with contextlib.ExitStack() as stack:
            running = {}
            for pod, base in self.bases.items():
                base.program(MPI + program)
                host_variables = {"HOSTNAME": pod, "TOOLKIT_BASE": str(base.root)}
                environ = {**self._recorded[pod]["environ"], **self._environ, **host_variables, **more}
                running[pod] = stack.enter_context(live(base, command=self._command, **environ))
            return {pod: host.end() for pod, host in running.items()}


@pytest.fixture(params=["openmpi4", "openmpi5", "mpich"])
def job(request: pytest.FixtureRequest, tmp_path: Path) -> MpiJob:
    return MpiJob(tmp_path, str(request.param))


def test_launcher_and_workers_are_one_job_of_mpi_with_the_slots_that_the_operator_gave(job: MpiJob) -> None:
    done = job.run(SUM)

    assert [end.status for end in done.values()] == [0, 0, 0], done
    lines = [line.rpartition(":")[2] for end in done.values() for line in end.stdout.decode().splitlines()]
    size = 3 * job.slots
    expected = [f"sum {size * (size + 1) // 2} {size} {host}" for host in job.hosts for _ in range(job.slots)]
    assert sorted(lines) == sorted(expected)


def test_a_rank_that_fails_in_a_worker_is_the_launchers_end(job: MpiJob) -> None:
    done = job.run("world.Barrier()\nif rank == size - 1: sys.exit(7)\nworld.recv(source=size - 1)\n")

    assert [end.status for end in done.values()] == [7, 7, 7], done
    failure = done["digits-launcher"].failure
    assert failure is not None
    assert f"host {job.hosts[2]}, rank " in failure
