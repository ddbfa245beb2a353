import msgspec
import pytest

from tests.train.launchers.jobs import job_of, script_of
from toolkit.errors import ContractError, UserError
from toolkit.job.plan import Resolves
from toolkit.settings import Settings
from toolkit.train.launchers.environment import HOOK, environment, link_ports, master, name_needs, tokens

TWO = ("algo-1", "algo-2")
OURS = {
    "PYTHONUNBUFFERED": "1",
    "PYTHONFAULTHANDLER": "1",
    "MASTER_ADDR": "algo-1",
    "MASTER_PORT": "7777",
    "NCCL_SOCKET_IFNAME": "eth0",
    "GLOO_SOCKET_IFNAME": "eth0",
    "FI_PROVIDER": "efa",
    "FI_EFA_USE_DEVICE_RDMA": "1",
    "RDMAV_FORK_SAFE": "1",
}


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("value", ["the user's", ""])
def test_the_users_value_wins(name: str, value: str) -> None:
    """Contract point 27."""
    defaults = environment(job_of(hosts=TWO, machine={"fabric": "efa"}), ())
    with_value = environment(job_of(hosts=TWO, machine={"fabric": "efa"}, environ={name: value}), ())

    assert defaults[name] == OURS[name]
    assert with_value == {**defaults, name: value}


def test_the_python_path_is_the_hook_the_code_and_the_users_own_in_this_order() -> None:
    """Contract point 25."""
    variables = {"PYTHONPATH": "/my/modules:/more"}

    assert environment(job_of(environ=variables), ())["PYTHONPATH"] == f"{HOOK}:/opt/ml/code:/my/modules:/more"
    assert environment(job_of(), ())["PYTHONPATH"] == f"{HOOK}:/opt/ml/code"


def test_without_the_hook_the_code_comes_first() -> None:
    job = job_of(settings=Settings(rank_hook="off"), environ={"PYTHONPATH": "/my/modules"})

    assert environment(job, ())["PYTHONPATH"] == "/opt/ml/code:/my/modules"


def test_the_hook_is_a_folder_that_python_finds_its_sitecustomize_in() -> None:
    assert (HOOK / "sitecustomize.py").is_file()


def test_the_contracts_variables_are_not_the_users_to_set() -> None:
    environ = environment(job_of(environ={"SM_MODEL_DIR": "/elsewhere", "CURRENT_HOST": "x"}), ("-a", "1"))

    assert (environ["SM_MODEL_DIR"], environ["CURRENT_HOST"]) == ("/opt/ml/model", "algo-1")
    assert environ["SM_USER_ARGS"] == '["-a","1"]'


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, ("algo-1", 7777)),
        ({"MASTER_PORT": "1234"}, ("algo-1", 1234)),
        ({"MASTER_ADDR": "10.0.0.9"}, ("10.0.0.9", 7777)),
        ({"MASTER_ADDR": "", "MASTER_PORT": ""}, ("algo-1", 7777)),
    ],
)
def test_the_rendezvous_is_the_users_else_the_leader_and_7777(
    environ: dict[str, str], expected: tuple[str, int]
) -> None:
    assert master(job_of(hosts=TWO, current="algo-2", environ=environ)) == expected


def test_one_host_has_a_rendezvous_of_its_own_whatever_its_name_resolves_to() -> None:
    """Contract point 28: Hugging Face's Trainer and DeepSpeed under mpirun need both variables."""
    environ = environment(job_of(), ())

    assert (environ["MASTER_ADDR"], environ["MASTER_PORT"]) == ("127.0.0.1", "7777")
    assert environment(job_of(environ={"MASTER_ADDR": "algo-1"}), ())["MASTER_ADDR"] == "algo-1"


def test_an_open_mpi_that_was_moved_is_told_where_it_lies() -> None:
    """`import mpi4py.MPI` in a script that mpirun did not start."""
    moved = {"opal_prefix": "/opt/venv"}

    assert environment(job_of(machine=moved), ())["OPAL_PREFIX"] == "/opt/venv"
    assert environment(job_of(machine=moved, environ={"OPAL_PREFIX": "/own"}), ())["OPAL_PREFIX"] == "/own"
    assert "OPAL_PREFIX" not in environment(job_of(), ())


def test_an_address_given_for_the_leader_takes_its_names_place() -> None:
    job = job_of(hosts=TWO, current="algo-2", addresses={"algo-1": "127.0.0.1"})

    assert master(job) == ("127.0.0.1", 7777)
    assert environment(job, ())["MASTER_ADDR"] == "127.0.0.1"
    assert name_needs(job) == (Resolves(host="algo-2", within_s=900),)


def test_names_are_waited_for_only_where_there_are_several_hosts() -> None:
    """Contract point 51."""
    assert name_needs(job_of()) == ()
    assert [need.host for need in name_needs(job_of(hosts=TWO)) if isinstance(need, Resolves)] == list(TWO)
    assert name_needs(job_of(hosts=TWO, environ={"SM_STUDIO_LOCAL_MODE": "True"})) == ()


def test_an_argument_that_no_process_can_be_given_is_refused_before_anything_starts() -> None:
    with pytest.raises(UserError, match="--text"):
        tokens(job_of(hyperparameters={"text": "x" * 200_000}))


def test_arguments_follow_the_scripts_style() -> None:
    job = job_of(hyperparameters={"a": True, "b": False}, script=script_of(argument_style="flags"))

    assert tokens(job) == ("-a",)


@pytest.mark.parametrize("port", ["0", "65536", "-1", "abc", "77 77", "9" * 400, "٣"])
def test_a_port_at_which_none_can_meet_is_refused_but_0_on_one_host_which_is_any(port: str) -> None:
    with pytest.raises(ContractError, match=r"^MASTER_PORT: expected a port, 1 to 65535") as error:
        link_ports(job_of(hosts=TWO, environ={"MASTER_PORT": port}))

    assert error.value.exit_code == 78
    alone = job_of(environ={"MASTER_PORT": port})
    if port == "0":
        assert master(alone)[1] == 7777
    else:
        with pytest.raises(ContractError, match=r"^MASTER_PORT: expected a port, 1 to 65535.* ranks meet, found"):
            master(alone)


def test_the_link_has_its_port_three_near_ones_and_some_of_its_own() -> None:
    job = job_of(hosts=TWO)
    another = msgspec.structs.replace(job, spec=msgspec.structs.replace(job.spec, name="another"))
    ports = link_ports(job)

    assert ports[:3] == (7776, 7676, 7576)
    assert len(set(ports)) == len(ports) == 8
    assert all(20000 <= port < 30000 for port in ports[3:])
    assert link_ports(job_of(hosts=TWO, current="algo-2")) == ports
    assert not set(link_ports(another)[3:]) & set(ports)


@pytest.mark.parametrize(
    ("rendezvous", "link_port", "first"), [("1", None, 2), ("2", None, 1), ("65535", None, 65534), ("7777", 80, 80)]
)
def test_the_links_ports_are_ports(rendezvous: str, link_port: int | None, first: int) -> None:
    ports = link_ports(job_of(hosts=TWO, environ={"MASTER_PORT": rendezvous}, settings=Settings(link_port=link_port)))

    assert ports[0] == first
    assert all(0 < port < 65536 for port in ports)
    assert int(rendezvous) not in ports
