"""Jobs under Slurm, for real: `train` on each node, started by srun; stops, limits and requeueing by Slurm itself."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.ports import free_ports
from tests.slurm.cluster import BIN, Cluster

pytestmark = [pytest.mark.slurm, pytest.mark.root]

# The nodes' names are Slurm's alone: on one machine they do not resolve.
ADDRESSES = "algo-1=127.0.0.1,algo-2=127.0.0.1,algo-3=127.0.0.1"
SAYS = "import os\nprint(os.environ['SM_CURRENT_HOST'], os.environ['SM_HOSTS'], flush=True)\n"
# Says that it trains; on SIGTERM, or SIGUSR1, saves where the platform says a model belongs. The tests' cluster tracks
# processes by their parents and signals each, so the script gets it twice; and Python, as it ends, takes handlers back.
SAVES = """\
import os, pathlib, signal, sys, time

def save(number, frame):
    signal.signal(number, signal.SIG_IGN)
    pathlib.Path(os.environ["SM_MODEL_DIR"], "saved").write_text(signal.Signals(number).name)
    time.sleep(1)  # So long that Slurm's second signal comes before the script has ended.
    sys.exit(0)

signal.signal(signal.SIGTERM, save)
signal.signal(signal.SIGUSR1, save)
pathlib.Path(os.environ["SM_MODEL_DIR"], "training").touch()
while True:
    time.sleep(0.05)
"""


class Work:
    """A job's folder on the cluster's common file system: its script, its job file, its results."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder

    def program(self, text: str, *words: str) -> Path:
        """Write the script and the job file; return the latter."""
        (self.folder / "train.py").write_text(text)
        file = self.folder / "job.toml"
        file.write_text("\n".join(['script = "train.py"', 'name = "work"', *words]) + "\n")
        return file

    def environ(self) -> dict[str, str]:
        port = free_ports(2)[1]
        return {
            "TOOLKIT_JOB": str(self.folder / "job.toml"),
            "TOOLKIT_BASE": f"{self.folder}/jobs/{{job}}/{{host}}",
            "TOOLKIT_HOST_ADDRESSES": ADDRESSES,
            "MASTER_PORT": str(port),
            "TMPDIR": str(self.folder),
        }

    def rendered(self, *options: str) -> str:
        """Return what `toolkit render slurm` makes of the job file."""
        file = str(self.folder / "job.toml")
        return self.cluster.run(str(BIN / "toolkit"), "render", "slurm", file, *options).stdout

    def submit(self, script: str, *options: str) -> str:
        return self.cluster.submit(script, f"--chdir={self.folder}", *options, environ=self.environ())

    def found(self, pattern: str) -> list[Path]:
        return sorted(self.folder.glob(f"jobs/{pattern}"))

    def outcome(self, host: str) -> dict[str, Any]:
        (file,) = self.found(f"*/{host}/output/outcome.json")
        story: dict[str, Any] = json.loads(file.read_bytes())
        return story

    def log(self) -> str:
        return "".join(path.read_text() for path in self.folder.glob("*.log"))


@pytest.fixture(scope="module", autouse=True)
def noticed(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> tuple[Work, str]:
    """A job that is near its time limit, and its id. Slurm looks every half minute: it waits beside the other tests."""
    work = Work(cluster, tmp_path_factory.mktemp("noticed"))
    work.program(SAVES, "hosts = 1", 'max-run = "1m"')
    # A limit is a minute at least. Slurm looks every 30 s for notices that are due by its next look: this one is so 5 s
    # after the start, when the script surely listens. The other tests have the first two nodes.
    return work, work.submit(work.rendered("--notice", "25"), "--nodelist=algo-3")


@pytest.fixture
def work(cluster: Cluster, tmp_path: Path) -> Work:
    return Work(cluster, tmp_path)


# Without it Slurm takes any two of the nodes: algo-1 and algo-3, where algo-2 still completes an earlier job.
ON_THE_FIRST_TWO = "--nodelist=algo-1,algo-2"


def srun(work: Work, *command: str) -> Any:
    words: Sequence[str] = ("srun", "--nodes=2", ON_THE_FIRST_TWO, "--ntasks-per-node=1", *command)
    return work.cluster.run(*words, environ=work.environ(), check=False)


def test_srun_starts_one_train_a_node_and_each_knows_all_hosts(work: Work) -> None:
    work.program(SAYS)

    done = srun(work, "train")

    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ['algo-1 ["algo-1","algo-2"]', 'algo-2 ["algo-1","algo-2"]']
    assert [path.parts[-3] for path in work.found("*/*/output/success")] == ["algo-1", "algo-2"]


@pytest.mark.torch
def test_ranks_on_two_nodes_train_together(work: Work) -> None:
    work.program(
        "import torch.distributed as dist, torch\n"
        "dist.init_process_group('gloo')\n"
        "total = torch.ones(1) * (dist.get_rank() + 1)\n"
        "dist.all_reduce(total)\n"
        "print('total', int(total), dist.get_world_size(), flush=True)\n"
        "dist.destroy_process_group()\n",
        'distribution = "torch_distributed"',
        "[env]",
        'GLOO_SOCKET_IFNAME = "lo"',
        'OMP_NUM_THREADS = "1"',
    )

    done = srun(work, "train")

    assert done.returncode == 0, done.stderr
    assert done.stdout.count("total 3 2") == 2


def test_the_exit_code_of_a_failing_rank_is_the_steps_and_every_node_names_it(work: Work) -> None:
    work.program(
        "import os, sys, time\nif os.environ['SM_CURRENT_HOST'] == 'algo-2':\n    sys.exit(7)\ntime.sleep(300)\n"
    )

    done = srun(work, "train")

    assert done.returncode == 7, done.stderr
    assert {work.outcome(host)["cause_host"] for host in ("algo-1", "algo-2")} == {"algo-2"}
    assert {work.outcome(host)["exit_code"] for host in ("algo-1", "algo-2")} == {7}


def test_two_tasks_on_a_node_are_refused_with_the_way_out(work: Work) -> None:
    work.program(SAYS)

    done = work.cluster.run("srun", "--nodes=1", "--ntasks=2", "train", environ=work.environ(), check=False)

    assert done.returncode == 78
    assert "expected one task on each node, found 2" in done.stderr
    assert "srun --ntasks-per-node=1" in done.stderr


def test_scancel_lets_the_script_save_on_every_node(work: Work) -> None:
    work.program(SAVES, "hosts = 2")
    job = work.submit(work.rendered(), ON_THE_FIRST_TWO)
    work.cluster.wait_for("sh", "-c", f"ls {work.folder}/jobs/*/*/model/training | wc -l", answer="2")

    work.cluster.run("scancel", job)

    assert work.cluster.wait_for_state(job, "CANCELLED", "FAILED", "COMPLETED") == "CANCELLED"
    work.cluster.wait_for("sh", "-c", f"ls {work.folder}/jobs/*/*/output/outcome.json | wc -l", answer="2")
    assert [path.read_text() for path in work.found("*/*/model/saved")] == ["SIGTERM", "SIGTERM"]
    assert {work.outcome(host)["status"] for host in ("algo-1", "algo-2")} == {"stopped"}
    assert work.outcome("algo-1")["exit_code"] == 143


def test_a_job_whose_end_is_worth_another_try_is_requeued(work: Work) -> None:
    work.program(
        "import os, sys\n"
        "count = os.environ.get('SLURM_RESTART_COUNT', '0')\n"
        "print('try', count, flush=True)\n"
        "sys.exit(75 if count == '0' else 0)\n",
        "hosts = 1",
    )

    job = work.submit(work.rendered())

    assert work.cluster.wait_for_state(job, "COMPLETED", "FAILED") == "COMPLETED"
    log = work.log()
    assert log.index("try 0") < log.index("Slurm has requeued this job, 1 times so far") < log.index("try 1")


def test_a_notice_before_the_time_limit_reaches_the_script_as_usr1(noticed: tuple[Work, str]) -> None:
    work, job = noticed

    state = work.cluster.wait_for_state(job, "COMPLETED", "FAILED", "TIMEOUT", deadline_s=120)

    assert state == "COMPLETED", work.log()
    assert [path.read_text() for path in work.found("*/*/model/saved")] == ["SIGUSR1"]
    log = work.log()
    assert "Reporting training SUCCESS" in log
    # Slurm's process tracking of the tests' cluster signals every process of a step.
    assert "guardian" not in log
