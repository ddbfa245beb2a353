import doctest
from typing import Any

import msgspec
import pytest

from tests.train.launchers.jobs import PYTHON, SCRATCH, job_of, script_of
from toolkit.errors import ContractError, UserError
from toolkit.job.job import Job
from toolkit.job.machine import Mpi
from toolkit.job.plan import ProcessSpec, Tags
from toolkit.settings import Settings
from toolkit.train.launchers import mpi_options
from toolkit.train.launchers.mpi import AGENT, RANK_SHIM, plan, plan_for
from toolkit.train.launchers.mpi_options import MpirunRequest, command, split_options

OPEN_MPI_4 = Mpi(kind="openmpi4", version="4.1.8", path="/usr/bin/mpirun")
OPEN_MPI_5 = Mpi(kind="openmpi5", version="5.0.11", path="/usr/bin/mpirun")
MPICH = Mpi(kind="mpich", version="5.0.2", path="/usr/bin/mpirun")
HOSTS = ("algo-2", "algo-10", "algo-1")


def under(
    mpi: Mpi | None = OPEN_MPI_4,
    *,
    options: str = "",
    processes: int | None = None,
    machine: dict[str, Any] | None = None,
    **more: Any,
) -> Job:
    """Return a job under mpirun; *options* in the form that train/platforms/sagemaker/read_job.py returns."""
    job = job_of("mpi", machine={"mpi": mpi, **(machine or {})}, **more)
    strategy = msgspec.structs.replace(
        job.strategy, processes=processes, processes_from="a key", mpirun_options=options
    )
    return msgspec.structs.replace(job, strategy=strategy)


def main(job: Job) -> ProcessSpec:
    return plan(job, SCRATCH).phase.main


def test_the_options_docs_are_true() -> None:
    assert doctest.testmod(mpi_options).failed == 0


def test_one_host_needs_no_agent() -> None:
    spec = main(under(gpus=8, hyperparameters={"lr": 0.1}))

    assert spec.argv == (
        "mpirun",
        "--host",
        "localhost:8",
        "-np",
        "8",
        "--allow-run-as-root",
        "--mca",
        "plm_rsh_agent",
        "/bin/sh",
        "--bind-to",
        "none",
        "--map-by",
        "slot",
        "--mca",
        "btl_vader_single_copy_mechanism",
        "none",
        PYTHON,
        "-I",
        "-S",
        str(RANK_SHIM),
        "-",
        PYTHON,
        "-m",
        "mpi4py",
        "train.py",
        "--lr",
        "0.1",
    )
    assert (spec.mpi_role, spec.starts_ranks) == ("", tuple(range(8)))


@pytest.mark.parametrize(("current", "mpi_role", "ranks"), [("algo-2", "agent", (0, 1)), ("algo-1", "daemon", (4, 5))])
def test_the_first_host_leads_and_the_others_wait_for_their_daemon(
    current: str, mpi_role: str, ranks: tuple[int, ...]
) -> None:
    """Contract points 40, 41: the documents' order, not the alphabet's."""
    planned = plan(under(hosts=HOSTS, current=current, per_host=2), SCRATCH)
    spec = planned.phase.main

    assert (spec.mpi_role, spec.starts_ranks, planned.world_size) == (mpi_role, ranks, 6)
    assert planned.role == ("leader" if mpi_role == "agent" else "follower")
    if mpi_role == "agent":
        assert spec.argv[1:5] == ("--host", "algo-2:2,algo-10:2,algo-1:2", "-np", "6")
    else:
        assert spec.argv == (PYTHON, "-I", "-S", str(AGENT), "--serve", "daemon")


@pytest.mark.parametrize(("mpi", "names"), [(OPEN_MPI_4, True), (OPEN_MPI_5, True), (MPICH, False)])
def test_hosts_that_are_one_machine_are_kept_apart(mpi: Mpi, names: bool) -> None:
    addresses = dict.fromkeys(HOSTS, "127.0.0.1")

    leader = main(under(mpi, hosts=HOSTS, current="algo-2", addresses=addresses))
    follower = main(under(mpi, hosts=HOSTS, current="algo-1", addresses=addresses))

    assert "localhost,algo-10.invalid,algo-1.invalid" in leader.argv
    assert follower.argv[5:] == (("daemon", "algo-1") if names else ("daemon",))


@pytest.mark.parametrize(
    ("mpi", "options", "remaining", "variables"),
    [
        (OPEN_MPI_4, "-q -x A=b --NCCL_DEBUG INFO -mca x y", ("-q", "-x", "A=b", "-mca", "x", "y"),
         {"NCCL_DEBUG": "INFO"}),
        (OPEN_MPI_5, "-verbose -np 3 -mca x -7 -x A", ("--verbose", "-np", "3", "--mca", "x", "-7", "-x", "A"), {}),
        (MPICH, "-x A=b=c -x PATH -genv D e", ("-genv", "D", "e"), {"A": "b=c"}),
        (OPEN_MPI_4, "  --NCCL_DEBUG", ("--NCCL_DEBUG",), {}),
    ],
)  # fmt: skip
def test_custom_options_stay_in_place_as_this_mpirun_takes_them(
    mpi: Mpi, options: str, remaining: tuple[str, ...], variables: dict[str, str]
) -> None:
    """Contract point 44."""
    assert split_options(mpi, options) == (remaining, variables)

    spec = main(under(mpi, options=options))

    index = spec.argv.index(PYTHON)
    assert spec.argv[index - len(remaining) : index] == remaining
    assert {name: spec.environ[name] for name in variables} == variables


@pytest.mark.parametrize(
    ("mpi", "options", "gone"),
    [
        (OPEN_MPI_4, "--mca btl_vader_single_copy_mechanism cma", ("--mca", "btl_vader_single_copy_mechanism", "none")),
        (OPEN_MPI_4, "-mca btl_vader_single_copy_mechanism none -x A=-1", ("btl_vader_single_copy_mechanism", "none")),
        (OPEN_MPI_4, "-bind-to core --mca x -1", ("--bind-to", "none")),
        (OPEN_MPI_5, "-bind-to core", ("--bind-to", "none")),
        (OPEN_MPI_5, "--map-by node --mca smsc cma", ("--map-by", "slot")),
        (OPEN_MPI_5, "--map-by node --mca smsc cma", ("--mca", "smsc", "^cma")),
        (MPICH, "-genvnone", ("-genvnone", "-hosts")),
    ],
)
def test_a_custom_option_takes_the_place_of_ours(mpi: Mpi, options: str, gone: tuple[str, ...]) -> None:
    argv = command(mpi, MpirunRequest(hosts=(("algo-1", 2),), processes=2, custom=split_options(mpi, options)[0]))

    plain = command(mpi, MpirunRequest(hosts=(("algo-1", 2),), processes=2))
    assert has(plain, gone)
    assert not has(argv[: -len(options.split())], gone)
    assert argv[-len(options.split()) :] == split_options(mpi, options)[0]


@pytest.mark.parametrize("options", ["-np 1", "--host other", "--mca other none", "--verbose", "-x PATH"])
def test_other_custom_options_leave_ours_alone(options: str) -> None:
    argv = command(OPEN_MPI_4, MpirunRequest(hosts=(("algo-1", 2),), processes=2, custom=tuple(options.split())))

    assert argv == (*command(OPEN_MPI_4, MpirunRequest(hosts=(("algo-1", 2),), processes=2)), *options.split())


def has(argv: tuple[str, ...], part: tuple[str, ...]) -> bool:
    return any(argv[index : index + len(part)] == part for index in range(len(argv)))


def test_ranks_share_the_cores_of_their_host_unless_the_user_says_otherwise() -> None:
    assert main(under(per_host=2)).environ["OMP_NUM_THREADS"] == "2"
    assert main(under(per_host=2, environ={"OMP_NUM_THREADS": "3"})).environ["OMP_NUM_THREADS"] == "3"
    assert "OMP_NUM_THREADS" not in main(under()).environ


def test_ranks_know_their_host_by_its_name_in_the_job_where_names_resolve() -> None:
    """Contract point 76: Lightning groups ranks by socket.gethostname()."""

    def names(**more: Any) -> list[str | None]:
        return [main(under(hosts=HOSTS, current=host, **more)).environ.get("TOOLKIT_HOST_NAME") for host in HOSTS]

    assert names() == list(HOSTS)
    assert names(addresses={host: f"10.0.0.{n}" for n, host in enumerate(HOSTS, 1)}) == [None] * len(HOSTS)
    assert "TOOLKIT_HOST_NAME" not in main(under()).environ


def test_hosts_of_one_machine_have_names_apart_and_the_leader_one_that_resolves() -> None:
    """Lightning treats hosts of one name as one host, and connects all ranks to the leader's name."""
    simulated = dict.fromkeys(HOSTS, "127.0.0.1")
    environs = {host: main(under(hosts=HOSTS, current=host, addresses=simulated)).environ for host in HOSTS}
    names = {host: environ.get("TOOLKIT_HOST_NAME") for host, environ in environs.items()}

    assert names == {host: None if n == 0 else host for n, host in enumerate(HOSTS)}


def test_nccl_knows_hosts_apart_whatever_they_are_called() -> None:
    """Contract point 76."""
    host_ids = {current: main(under(hosts=HOSTS, current=current)).environ["NCCL_HOSTID"] for current in HOSTS}

    assert host_ids == {host: host for host in HOSTS}


@pytest.mark.parametrize(
    ("kind", "entry", "tail"),
    [
        ("program", "src/train.py", (PYTHON, "-m", "mpi4py", "src/train.py")),
        ("module", "pkg.main", (PYTHON, "-m", "mpi4py", "-m", "pkg.main")),
        ("command", "run", ("./run",)),
    ],
)
def test_every_kind_of_script_can_be_a_rank(kind: str, entry: str, tail: tuple[str, ...]) -> None:
    spec = main(under(hyperparameters={}, script=script_of(entry, kind)))

    assert spec.argv[spec.argv.index("-") + 1 :] == tail


def test_fewer_processes_than_slots_end_with_the_last_host() -> None:
    planned = plan(under(hosts=HOSTS, current="algo-1", per_host=2, processes=5), SCRATCH)

    assert (planned.world_size, planned.phase.main.starts_ranks) == (5, (4,))


def test_a_host_without_a_process_is_a_mistake() -> None:
    with pytest.raises(ContractError, match=r"^a key: expected one process or more on each of 3 hosts"):
        plan(under(hosts=HOSTS, current="algo-1", per_host=2, processes=4), SCRATCH)


@pytest.mark.parametrize("agent", ["link", "ssh"])
def test_several_hosts_need_the_link(agent: Any) -> None:
    job = under(hosts=HOSTS, current="algo-1", settings=Settings(link="off", mpi_agent=agent))

    with pytest.raises(ContractError, match=r"TOOLKIT_LINK.*found off\. Leave the link on"):
        plan(job, SCRATCH)


def test_with_ssh_a_follower_runs_an_sshd() -> None:
    job = under(hosts=HOSTS, current="algo-1", settings=Settings(mpi_agent="ssh"))

    assert main(job).argv[4:] == ("--serve", "sshd", "/usr/sbin/sshd")


@pytest.mark.parametrize("mpi", [OPEN_MPI_4, OPEN_MPI_5, MPICH])
def test_without_the_rank_shim_the_leaders_plan_says_how_its_mpirun_tags_lines(mpi: Mpi) -> None:
    off = Settings(rank_shim="off")

    assert main(under(mpi, settings=off)).tags == Tags(by=mpi.kind, hosts={"localhost": "algo-1"})
    assert main(under(mpi, hosts=HOSTS, current="algo-2", settings=off)).tags == Tags(by=mpi.kind)
    assert main(under(mpi, hosts=HOSTS, current="algo-1", settings=off)).tags is None
    assert main(under(mpi)).tags is None


def test_hosts_that_mpirun_knows_by_their_addresses_are_known_again() -> None:
    addresses = {"algo-2": "10.0.0.1", "algo-1": "b.example.net"}
    job = under(hosts=HOSTS, current="algo-2", addresses=addresses, settings=Settings(rank_shim="off", mpi_agent="ssh"))

    tags = main(job).tags

    assert tags is not None
    assert tags.hosts == {"10.0.0.1": "algo-2", "b.example.net": "algo-1", "b": "algo-1"}


def test_no_mpirun_is_the_images_mistake() -> None:
    job = under(None, machine={"mpi_trouble": "no mpirun on PATH (/usr/bin:/bin)"})

    with pytest.raises(UserError, match=r"found no mpirun on PATH.*openmpi-bin"):
        plan(job, SCRATCH)


def test_other_launchers_can_wrap_it() -> None:
    planned = plan_for(
        under(per_host=2),
        SCRATCH,
        name="smddp",
        custom_options="-x A=b",
        extra_environ={"SMDATAPARALLEL_USE_SINGLENODE": "1", "HOME": "theirs"},
        options=("--oversubscribe",),
        wrap=("smddprun",),
    )
    spec = planned.phase.main

    assert planned.launcher == "smddp"
    index = spec.argv.index("--oversubscribe")
    assert spec.argv[index : index + 4] == ("--oversubscribe", "-x", "A=b", PYTHON)
    assert spec.argv[spec.argv.index("-") + 1 :][:2] == ("smddprun", PYTHON)
    assert spec.environ["SMDATAPARALLEL_USE_SINGLENODE"] == "1"
    assert spec.environ["HOME"] == "/root"
