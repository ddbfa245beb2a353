"""Processes beside the script that every host's script may need: TensorFlow's parameter servers, here simulated.

Real `train` processes on this machine; the package `tensorflow` they find has a Server that only says what happens to
it.
"""

import json
import os
import re
import signal
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.train.live import Live, alive, gone
from tests.train.test_together import WAITS, Hosts

TENSORFLOW = """
import os, signal, sys, time, types

class Server:
    def __init__(self, cluster, job_name, task_index, config):
        self.name = f"server {job_name} {task_index}"

    def join(self):
        def told(number, frame):
            print("server told", "after" if os.path.exists(os.environ["MEET"]) else "before", flush=True)
            if os.environ.get("SERVER") != "ignores":
                sys.exit(0)
        signal.signal(signal.SIGTERM, told)
        signal.signal(signal.SIGUSR1, lambda *_: sys.exit(5))
        print(f"{self.name} pid {os.getpid()} up", flush=True)
        while True:
            time.sleep(0.05)

distribute = types.SimpleNamespace(Server=Server)
compat = types.SimpleNamespace(v1=types.SimpleNamespace(ConfigProto=lambda **_: None))
"""
ENDS = "print('script done', flush=True)\n"
# Ends with the file `meet`.
STAYS = """
import os, time
print(f"script pid {os.getpid()} up", flush=True)
while not os.path.exists(os.environ["MEET"]):
    time.sleep(0.01)
"""
# Saves for a second when it is told to, then makes the file `meet`.
SAVES = """
import os, pathlib, signal, time
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
print(f"script pid {os.getpid()} up", flush=True)
signal.sigwait({signal.SIGTERM})
time.sleep(1)
pathlib.Path(os.environ["MEET"]).touch()
"""
# Listens where TF_CONFIG says, as the master's script does, until the file `meet` is there.
LISTENS = """
import json, os, socket, time
port = int(json.loads(os.environ["TF_CONFIG"])["cluster"]["master"][0].rpartition(":")[2])
server = socket.create_server(("127.0.0.1", port))
print(f"script pid {os.getpid()} up", flush=True)
while not os.path.exists(os.environ["MEET"]):
    time.sleep(0.01)
"""


@pytest.fixture
def hosts(tmp_path: Path) -> Hosts:
    """Two hosts of a job with parameter servers."""
    hosts = Hosts(tmp_path)
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages/tensorflow.py").write_text(TENSORFLOW)
    hosts.environ |= {
        "PYTHONPATH": str(tmp_path / "packages"),
        "MEET": str(hosts.meet),
        "MASTER_PORT": str(free_port()),
    }
    for base in hosts.bases.values():
        base.hyperparameters({"sagemaker_parameter_server_enabled": "true"})
    return hosts


def server_pid(host: Live) -> int:
    host.until(b" up\n")
    while not (match := re.search(rb"server ps \d pid (\d+) up", host.out + host.err)):
        host.until(b"server ps")
        host.until(b" up\n", count=2)
    return int(match[1])


def script_pid(host: Live) -> int:
    host.until(b"script pid")
    host.until(b"up\n", count=2)
    match = re.search(rb"script pid (\d+) up", host.out + host.err)
    assert match is not None
    return int(match[1])


def test_each_host_has_its_server_which_stays_until_the_last_script_has_ended_and_no_longer(hosts: Hosts) -> None:
    hosts.program("algo-1", STAYS)
    hosts.program("algo-2", ENDS)
    with hosts.start() as running:
        servers = {name: server_pid(host) for name, host in running.items()}
        running["algo-2"].until(b"script done")
        script_pid(running["algo-1"])
        assert all(map(alive, servers.values()))
        hosts.meet.touch()
        done = {name: host.end() for name, host in running.items()}

    assert [end.status for end in done.values()] == [0, 0], done
    assert all(gone(pid) for pid in servers.values())
    for index, (name, item) in enumerate(done.items()):
        assert f"[{name} ps] server ps {index} pid" in item.log
        assert f"[{name} ps] server told after" in item.log
        assert "outlived" not in item.log
        assert [end["process"] for end in item.outcome["exits"]] == ["script"]


@pytest.mark.parametrize(
    ("number", "status", "cause"),
    [(signal.SIGUSR1, 5, "ended with code 5"), (signal.SIGKILL, 137, "ps was killed by SIGKILL")],
)
def test_a_server_that_fails_is_the_cause_on_every_host(hosts: Hosts, number: int, status: int, cause: str) -> None:
    hosts.program("algo-1", STAYS)
    hosts.program("algo-2", STAYS)
    with hosts.start() as running:
        servers = {name: server_pid(host) for name, host in running.items()}
        scripts = {name: script_pid(host) for name, host in running.items()}
        os.kill(servers["algo-2"], number)
        done = {name: host.end() for name, host in running.items()}

    assert {name: end.status for name, end in done.items()} == {"algo-1": status, "algo-2": status}, done
    for end in done.values():
        assert cause in (end.failure or "")
        assert "host algo-2" in (end.failure or "")
    assert all(gone(pid) for pid in (*servers.values(), *scripts.values()))


def test_a_server_whose_hosts_script_has_ended_can_still_fail_the_job(hosts: Hosts) -> None:
    hosts.program("algo-1", STAYS)
    hosts.program("algo-2", ENDS)
    with hosts.start() as running:
        servers = {name: server_pid(host) for name, host in running.items()}
        script_pid(running["algo-1"])
        running["algo-2"].until(b"script done")
        os.kill(servers["algo-2"], signal.SIGKILL)
        done = {name: host.end() for name, host in running.items()}

    assert {name: end.status for name, end in done.items()} == {"algo-1": 137, "algo-2": 137}, done


def test_a_script_that_fails_ends_the_servers_of_every_host(hosts: Hosts) -> None:
    hosts.program("algo-1", WAITS)
    hosts.program("algo-2", STAYS + "raise SystemExit(3)\n")
    with hosts.start() as running:
        servers = {name: server_pid(host) for name, host in running.items()}
        running["algo-1"].until(b" up\n", count=2)
        hosts.meet.touch()
        done = {name: host.end() for name, host in running.items()}

    assert {name: end.status for name, end in done.items()} == {"algo-1": 3, "algo-2": 3}, done
    assert all(gone(pid) for pid in servers.values())


def test_when_the_job_stops_servers_stay_until_the_slowest_script_has_saved(hosts: Hosts) -> None:
    hosts.program("algo-1", SAVES)
    hosts.program("algo-2", SAVES.replace("time.sleep(1)", "raise SystemExit"))
    with hosts.start() as running:
        servers = {name: server_pid(host) for name, host in running.items()}
        for host in running.values():
            script_pid(host)
        for host in running.values():
            host.signal(signal.SIGTERM)
        done = {name: host.end() for name, host in running.items()}

    assert [end.status for end in done.values()] == [0, 0], done
    for end in done.values():
        assert "server told after" in end.log
        assert "SIGKILL to" not in end.log
    assert all(gone(pid) for pid in servers.values())


def test_a_server_that_will_not_end_is_killed_and_costs_the_job_a_second(hosts: Hosts) -> None:
    hosts.program("algo-1", STAYS)
    hosts.program("algo-2", ENDS)
    with hosts.start(SERVER="ignores") as running:
        servers = {name: server_pid(host) for name, host in running.items()}
        hosts.meet.touch()
        done = {name: host.end() for name, host in running.items()}

    assert [end.status for end in done.values()] == [0, 0], done
    assert all("server told" in end.log and not end.outcome["notes"] for end in done.values())
    assert all(gone(pid) for pid in servers.values())


def test_a_server_does_not_outlive_a_train_that_is_killed(hosts: Hosts) -> None:
    hosts.program("algo-1", STAYS)
    hosts.program("algo-2", STAYS)
    with hosts.start() as running:
        servers = {name: server_pid(host) for name, host in running.items()}
        running["algo-2"].signal(signal.SIGKILL)
        assert gone(servers["algo-2"])
        done = running["algo-1"].end()

    assert done.status == 75
    assert gone(servers["algo-1"])


def test_without_the_link_a_hosts_server_stays_until_nothing_listens_at_the_masters_address(hosts: Hosts) -> None:
    hosts.program("algo-1", LISTENS)
    hosts.program("algo-2", ENDS)
    with hosts.start(TOOLKIT_LINK="off") as running:
        servers = {name: server_pid(host) for name, host in running.items()}
        script_pid(running["algo-1"])
        running["algo-2"].until(b"services stay until nothing listens on 127.0.0.1:")
        assert alive(servers["algo-2"])
        hosts.meet.touch()
        done = {name: host.end() for name, host in running.items()}

    assert [end.status for end in done.values()] == [0, 0], done
    assert all(gone(pid) for pid in servers.values())


def test_the_users_own_tf_config_is_theirs_and_has_no_server_of_ours(hosts: Hosts) -> None:
    configuration = json.dumps({"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}})
    for name in hosts.bases:
        hosts.program(name, "import os\nprint(os.environ['TF_CONFIG'])\n")

    done = hosts.run(TF_CONFIG=configuration)

    for end in done.values():
        assert end.status == 0, end
        assert configuration in end.log
        assert "server ps" not in end.log
