import socket
import threading
import time
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.train.launchers.jobs import SCRATCH, job_of
from toolkit.commands.check.network import check, interface, link, names, rendezvous, resolve
from toolkit.job.job import Job
from toolkit.settings import Settings
from toolkit.train.launchers import table
from toolkit.train.probe.port import holder, refused

TWO = ("algo-1", "algo-2")
HERE = {"algo-1": "127.0.0.1", "algo-2": "127.0.0.1"}


@pytest.fixture
def port() -> int:
    return free_port()


def leader(port: int, settings: Settings | None = None, **environ: str) -> Job:
    variables = {"MASTER_PORT": str(port), **environ}
    return job_of("torch_distributed", hosts=TWO, environ=variables, addresses=HERE, settings=settings)


def test_one_host_has_nothing_to_look_at() -> None:
    job = job_of("pytorchddp")

    assert check(job, table.plan(job, SCRATCH)) == ()


def test_names_that_resolve_are_shown_with_their_addresses() -> None:
    assert resolve(["localhost", "127.0.0.1"], within_s=2)["127.0.0.1"] == ("127.0.0.1",)
    assert resolve(["x" * 300, "", "no-such-host.invalid"], within_s=2).keys() <= {""}


def test_names_that_need_not_resolve_are_not_asked_for() -> None:
    job = leader(7777)

    result = names(job, table.plan(job, SCRATCH))

    assert (result.status, result.found) == ("ok", "none has to resolve (algo-1 127.0.0.1, algo-2 127.0.0.1)")


def test_many_names_that_do_not_resolve_are_asked_for_at_once() -> None:
    hosts = tuple(f"no-such-host-{number}.invalid" for number in range(50))
    job = job_of("torch_distributed", hosts=hosts, current=hosts[0])
    began_s = time.monotonic()

    result = names(job, table.plan(job, SCRATCH))

    assert time.monotonic() - began_s < 60  # 2 s, and a busy machine's patience; one after the other it would be 100.
    assert result.status == "fail"
    assert result.found == f"{', '.join(hosts[:4])} and 46 more do not resolve within 2 s"


def test_a_free_port_is_free_and_is_left_so(port: int) -> None:
    result = rendezvous(leader(port), table.plan(leader(port), SCRATCH))

    assert (result.status, result.found) == ("ok", f"127.0.0.1:{port} is free")
    with socket.create_server(("127.0.0.1", port)):
        pass


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "0.0.0.0"])
def test_a_port_that_somebody_listens_on_is_refused_whatever_its_address(address: str) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        server = socket.create_server((address, 0), family=family)
    except OSError:
        pytest.skip("needs IPv6")
    with server:
        reason = refused(server.getsockname()[1])

    assert reason == "Address already in use"


def test_a_port_whose_last_connections_are_still_closing_is_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        used = server.getsockname()[1]
        client = threading.Thread(target=lambda: socket.create_connection(("127.0.0.1", used)).close())
        client.start()
        server.accept()[0].close()  # This side closes first, or at least may: TIME_WAIT.
        client.join()

    assert refused(used) == ""


def test_no_port_at_all_is_refused() -> None:
    assert "65535" in refused(70_000)


def test_a_taken_port_fails_under_torchrun_and_warns_a_script() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        ranks = leader(taken)
        alone = job_of(hosts=TWO, environ={"MASTER_PORT": str(taken)}, addresses=HERE)

        assert rendezvous(ranks, table.plan(ranks, SCRATCH)).status == "fail"
        assert rendezvous(alone, table.plan(alone, SCRATCH)).status == "warn"


def test_a_master_address_of_another_machine_is_a_warning_on_the_leader(port: int) -> None:
    # 192.0.2.0/24 is kept for documents (RFC 5737): no machine has it.
    job = leader(port, MASTER_ADDR="192.0.2.1")

    result = rendezvous(job, table.plan(job, SCRATCH))

    assert result.status == "warn"
    assert "192.0.2.1 is no address of this host" in result.found


def test_a_followers_port_is_the_leaders_matter() -> None:
    job = job_of("torch_distributed", hosts=TWO, current="algo-2", addresses=HERE)

    assert rendezvous(job, table.plan(job, SCRATCH)).found == "127.0.0.1:7777 is for algo-1 to open"


def test_the_links_port_lies_below_the_rendezvous_or_where_it_was_put() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        below, put = link(leader(taken + 1)), link(leader(1, Settings(link_port=taken)))
        by = holder(taken)

    assert [(result.status, result.found) for result in (*below, *put)] == [
        ("warn", f"port {taken} cannot be opened (Address already in use): {by} listens on it")
    ] * 2
    assert f"else train uses port {taken - 100}" in below[0].advice
    assert link(leader(taken + 1))[0].found == f"port {taken} is free"


def test_without_the_link_its_port_is_nobodys() -> None:
    assert link(leader(7777, Settings(link="off"))) == ()


def test_a_secret_that_cannot_be_read_fails(tmp_path: Path) -> None:
    (result,) = link(leader(7777, Settings(job_secret_file=tmp_path / "secret")))

    assert (result.status, str(tmp_path) in result.found) == ("fail", True)


def test_a_secret_that_is_empty_fails(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("\n")

    (result,) = link(leader(7777, Settings(job_secret_file=tmp_path / "secret")))

    assert (result.status, result.found.endswith("is empty")) == ("fail", True)


def test_the_interface_is_told_with_what_is_wrong_with_it() -> None:
    with_efa = interface(job_of(hosts=TWO, machine={"fabric": "efa"}))
    other = interface(job_of(hosts=TWO, interface="ethwe"))
    none = interface(job_of(hosts=TWO, interface="ethwe", machine={"route_interface": None}))
    chosen = interface(job_of(hosts=TWO, interface="ethwe", environ={"NCCL_SOCKET_IFNAME": "^lo"}))

    assert (with_efa.status, with_efa.found) == ("ok", "eth0, efa devices")
    assert (other.status, other.advice) == ("warn", "")
    assert (none.status, bool(none.advice)) == ("warn", True)
    assert (chosen.status, chosen.found) == ("ok", "^lo (NCCL_SOCKET_IFNAME)")
