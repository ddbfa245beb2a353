"""Two `train` processes of one job, on one machine: one's end is the other's, with its true cause.

What the link says to whom in every order of events is in tests/train/peers; here are the exit codes and texts of real
hosts.
"""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.faults import cage
from tests.ports import free_port
from tests.train.base import TRAIN, Base, Done
from tests.train.live import Live, alive, gone, live
from toolkit import settings
from toolkit.job.machine import Machine
from toolkit.log import Log
from toolkit.train.launchers.environment import link_ports
from toolkit.train.platforms import table as platforms
from toolkit.train.supervise.signals import SAME_REQUEST_S

# Says its pid and waits to be told to stop.
WAITS = """
import os, signal, sys, time
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
print(f"pid {os.getpid()} up", flush=True)
signal.sigwait({signal.SIGTERM})
print("told", flush=True)
"""
SAVES = WAITS.replace(
    'print("told", flush=True)', 'print("told", flush=True); time.sleep(1); print("saved", flush=True)'
)
# Raises once another host's script has made the file `meet`.
RAISES = """
import os, time
print(f"pid {os.getpid()} up", flush=True)
while not os.path.exists({meet!r}):
    time.sleep(0.01)
raise RuntimeError("boom, and nobody else")
"""
MEETS = "import pathlib; pathlib.Path({meet!r}).touch()\n" + WAITS
ENDS = "print('done', flush=True)\n"


class Hosts:
    """The hosts of one job: a base and its `train` each, by name."""

    def __init__(self, folder: Path, names: Sequence[str] = ("algo-1", "algo-2")) -> None:
        self.folder = folder
        self.meet = folder / "meet"
        self.bases = {name: Base(folder / name) for name in names}
        for name, base in self.bases.items():
            base.resources(list(names), current=name)
        self.environ = {
            "TOOLKIT_LINK": "on",
            "TOOLKIT_LINK_PORT": str(free_port()),
            "TOOLKIT_HOST_ADDRESSES": ",".join(f"{name}=127.0.0.1" for name in names),
        }

    def program(self, name: str, text: str) -> None:
        self.bases[name].program(text.replace("{meet!r}", repr(str(self.meet))))

    @contextlib.contextmanager
    def start(self, *names: str, **more: str) -> Iterator[dict[str, Live]]:
        """Start `train` on the hosts *names* (all)."""
        with contextlib.ExitStack() as stack:
            yield {
                name: stack.enter_context(live(self.bases[name], **{**self.environ, **more}))
                for name in names or self.bases
            }

    def run(self, **more: str) -> dict[str, Done]:
        """Run all to their ends."""
        with self.start(**more) as running:
            return {name: end.end() for name, end in running.items()}


@pytest.fixture
def hosts(tmp_path: Path) -> Hosts:
    return Hosts(tmp_path)


def script_of(host: Live) -> int:
    """Return the pid of a host's script, once it runs."""
    host.until(b" up")
    return int(host.out.partition(b"pid ")[2].split()[0])


def await_end(host: Live, began_s: float) -> tuple[Done, float]:
    done = host.end()
    return done, time.monotonic() - began_s


def test_hosts_that_find_their_source_in_different_places_are_of_one_job(hosts: Hosts) -> None:
    for name, base in hosts.bases.items():
        source = hosts.folder / f"source-{name}"
        source.mkdir()
        (source / "train.py").write_text(ENDS)
        level = 20 if name == "algo-1" else 10
        hyperparameters = {
            "sagemaker_submit_directory": json.dumps(str(source)),
            "sagemaker_container_log_level": str(level),
        }
        base.hyperparameters(hyperparameters)

    ends = hosts.run(TOOLKIT_JOIN_S="10")

    assert {name: done.status for name, done in ends.items()} == {"algo-1": 0, "algo-2": 0}


def test_a_host_outside_the_distributions_instance_groups_is_of_the_job(hosts: Hosts) -> None:
    """SageMaker's heterogeneous clusters: algo-2 runs its script alone, so its launcher is another one."""
    flags = {
        "sagemaker_parameter_server_enabled": "true",
        "sagemaker_distribution_instance_groups": json.dumps(["trains"]),
    }
    of_host = {"algo-1": "trains", "algo-2": "loads"}
    groups = [
        {"instance_group_name": group, "instance_type": "ml.c5.xlarge", "hosts": [name]}
        for name, group in of_host.items()
    ]
    for name, base in hosts.bases.items():
        hosts.program(name, ENDS)
        base.hyperparameters(flags)
        base.resources(list(of_host), current=name, current_group_name=of_host[name], instance_groups=groups)

    ends = hosts.run(TOOLKIT_JOIN_S="30")

    assert {name: done.status for name, done in ends.items()} == {"algo-1": 0, "algo-2": 0}


@pytest.mark.parametrize("culprit", ["algo-1", "algo-2"])
def test_a_failure_on_one_host_is_the_end_of_all_with_its_cause(hosts: Hosts, culprit: str) -> None:
    (other,) = hosts.bases.keys() - {culprit}
    hosts.program(culprit, RAISES)
    hosts.program(other, MEETS)

    done = hosts.run()

    assert done[culprit].status == done[other].status == 1
    for end in done.values():
        assert end.failure is not None
        assert end.failure.startswith(
            'ExecuteUserScriptError:\nExitCode 1\nErrorMessage "RuntimeError: boom, and nobody'
        )
        assert f"host {culprit}" in end.failure
    assert f"this host, {other}, was healthy" in str(done[other].failure)
    assert "was healthy" not in str(done[culprit].failure)
    # Who failed is said at once, of what at the end, once.
    assert f"script of host {culprit} failed: ended with code 1; stopping this host" in done[other].log
    assert done[other].log.count("boom, and nobody else") == 1
    assert b"told" in done[other].stdout


def test_a_code_of_its_own_is_the_code_of_all(hosts: Hosts) -> None:
    hosts.program("algo-1", MEETS)
    hosts.program("algo-2", RAISES.replace('raise RuntimeError("boom, and nobody else")', "os._exit(42)"))

    assert {end.status for end in hosts.run().values()} == {42}


def test_two_hosts_that_fail_are_told_apart(hosts: Hosts) -> None:
    pid = str(hosts.folder / "pid")
    hosts.program("algo-2", f"import os\nos.symlink(str(os.getpid()), {pid!r})\nos._exit(6)\n")
    hosts.program(
        "algo-1",
        f"import os, time\nwhile not os.path.islink({pid!r}): time.sleep(0.01)\n"
        f"while os.path.exists('/proc/' + os.readlink({pid!r})): time.sleep(0.01)\n"
        "time.sleep(0.3)\nraise SystemExit(5)\n",
    )

    done = hosts.run()

    assert {end.status for end in done.values()} == {6}
    assert "host algo-2" in str(done["algo-1"].failure)


def test_the_same_traceback_on_both_hosts_is_told_once_with_a_count(hosts: Hosts) -> None:
    for name, other in (("algo-1", "algo-2"), ("algo-2", "algo-1")):
        ready, wait = hosts.folder / f"{name}-ready", hosts.folder / f"{other}-ready"
        raises = f"open({str(ready)!r}, 'w').close()\n" + RAISES.replace("{meet!r}", repr(str(wait)))
        # The second has raised, and says so, when the first one's end is told.
        linger = "import atexit, time\natexit.register(time.sleep, 0.5)\n"
        hosts.program(name, linger + raises)

    done = hosts.run()

    assert {end.status for end in done.values()} == {1}
    assert all("1 more rank with the same traceback" in str(end.failure) for end in done.values()), done


def test_success_is_success_when_all_have_ended_well(hosts: Hosts) -> None:
    hosts.program("algo-1", ENDS)
    hosts.program("algo-2", "import time\ntime.sleep(1)\n" + ENDS)

    done = hosts.run()

    assert {end.status for end in done.values()} == {0}
    assert all(end.succeeded for end in done.values())
    assert "SECRET" not in done["algo-1"].log


def test_a_host_that_ended_well_shares_the_failure_that_comes_later(hosts: Hosts) -> None:
    hosts.program("algo-1", ENDS)
    hosts.program("algo-2", "import time\ntime.sleep(1)\nraise SystemExit(9)\n")

    done = hosts.run()

    assert {end.status for end in done.values()} == {9}
    assert not done["algo-1"].succeeded
    assert "this host, algo-1, was healthy" in str(done["algo-1"].failure)


@pytest.mark.parametrize("stopped", ["algo-1", "algo-2"])
def test_a_stop_of_one_host_is_a_stop_of_all(hosts: Hosts, stopped: str) -> None:
    for name in hosts.bases:
        hosts.program(name, SAVES)
    with hosts.start() as running:
        for host in running.values():
            script_of(host)

        running[stopped].signal(signal.SIGTERM)
        done = {name: host.end() for name, host in running.items()}

    assert all(b"saved" in end.stdout for end in done.values())
    assert len({end.status for end in done.values()}) == 1


def test_a_stop_of_all_hosts_at_once_lets_every_script_save(hosts: Hosts) -> None:
    """A platform stops all hosts: the other's stop, first here over the link, and our own are one."""
    for name in hosts.bases:
        hosts.program(name, SAVES)
    with hosts.start() as running:
        for host in running.values():
            script_of(host)

        running["algo-1"].signal(signal.SIGTERM)
        running["algo-2"].until(b"told")
        running["algo-2"].signal(signal.SIGTERM)
        done = {name: host.end() for name, host in running.items()}

    assert all(b"saved" in end.stdout for end in done.values()), done
    assert len({end.status for end in done.values()}) == 1


def test_a_leader_that_is_killed_and_started_again_at_once_ends_the_job_with_75(hosts: Hosts) -> None:
    for name in hosts.bases:
        hosts.program(name, WAITS)
    with hosts.start() as running:
        for host in running.values():
            host.until(b" up")

        running["algo-1"].signal(signal.SIGKILL)
        running["algo-1"].end()
        with hosts.start("algo-1") as again:
            done = {"algo-1": again["algo-1"].end(), "algo-2": running["algo-2"].end()}

    for end in done.values():
        assert end.status == 75
        assert "host algo-1 vanished: its train ended, and another process was started in its place" in str(end.failure)
    assert b" up" not in done["algo-1"].stdout
    assert b"told" in done["algo-2"].stdout


@pytest.mark.parametrize("killed", ["algo-1", "algo-2"])
def test_a_train_that_is_killed_ends_the_job_with_75_and_its_name(hosts: Hosts, killed: str) -> None:
    (other,) = hosts.bases.keys() - {killed}
    for name in hosts.bases:
        hosts.program(name, WAITS)
    # Seen by its broken connection: silence would take longer than the test may.
    with hosts.start(TOOLKIT_HEARTBEAT_TIMEOUT_S="90") as running:
        scripts = {name: script_of(host) for name, host in running.items()}

        began_s = time.monotonic()
        running[killed].signal(signal.SIGKILL)
        done, ended_s = await_end(running[other], began_s)

    assert done.status == 75
    assert f"host {killed} vanished" in str(done.failure)
    assert f"this host, {other}, was healthy" in str(done.failure)
    assert all(gone(pid) for pid in scripts.values())
    assert ended_s < 60.0


@pytest.mark.parametrize("killed", ["algo-1", "algo-2"])
def test_a_host_that_knew_an_echo_only_names_the_cause_when_it_is_settled(hosts: Hosts, killed: str) -> None:
    (other,) = hosts.bases.keys() - {killed}
    hosts.program(killed, WAITS)
    hosts.program(other, RAISES.replace("boom, and nobody else", "[gloo] Connection closed by peer [127.0.0.1]:2"))
    with hosts.start() as running:
        for host in running.values():
            script_of(host)

        running[killed].signal(signal.SIGKILL)
        hosts.meet.touch()
        done = running[other].end()

    log = done.stderr.decode()
    assert done.status == 75
    assert 0 < log.find(f"host {killed} failed: host {killed} vanished") < log.index("Reporting training FAILURE")


@pytest.mark.parametrize("stopped", ["algo-1", "algo-2"])
def test_a_train_that_falls_silent_ends_the_job_with_75_and_its_name(hosts: Hosts, stopped: str) -> None:
    (other,) = hosts.bases.keys() - {stopped}
    for name in hosts.bases:
        hosts.program(name, WAITS)
    with hosts.start(TOOLKIT_HEARTBEAT_TIMEOUT_S="2") as running:
        for host in running.values():
            script_of(host)

        running[stopped].signal(signal.SIGSTOP)
        done = running[other].end()
        running[stopped].signal(signal.SIGCONT)
        late = running[stopped].end()

    assert done.status == late.status == 75
    silence = re.search(f"host {stopped} vanished: nothing was heard of it for ([0-9.]+) s", str(done.failure))
    assert silence is not None, done.failure
    assert 2.0 <= float(silence[1]) < 60.0


def test_a_short_pause_of_a_train_harms_nobody(hosts: Hosts) -> None:
    for name in hosts.bases:
        hosts.program(name, "import time\nprint('pid 0 up', flush=True)\ntime.sleep(3)\n")
    with hosts.start(TOOLKIT_HEARTBEAT_TIMEOUT_S="6") as running:
        for host in running.values():
            script_of(host)
        for host in running.values():
            host.signal(signal.SIGSTOP)
            time.sleep(1)
            host.signal(signal.SIGCONT)
        done = {name: host.end() for name, host in running.items()}

    assert {end.status for end in done.values()} == {0}


@pytest.mark.parametrize("culprit", ["algo-1", "algo-2"])
def test_nobody_waits_for_a_host_that_has_no_entry_point(hosts: Hosts, culprit: str) -> None:
    (other,) = hosts.bases.keys() - {culprit}
    hosts.program(other, WAITS)

    began_s = time.monotonic()
    done = hosts.run()

    assert time.monotonic() - began_s < 60
    assert done[culprit].status == done[other].status
    assert done[culprit].status not in (0, 75)
    assert "train.py" in str(done[other].failure)
    assert f"host {culprit}" in str(done[other].failure)
    assert b"pid" not in done[other].stdout


def test_nobody_waits_for_a_host_whose_requirements_cannot_be_installed(hosts: Hosts) -> None:
    for name in hosts.bases:
        hosts.program(name, WAITS)
    (hosts.bases["algo-2"].code / "requirements.txt").write_text("./no-such-folder-here\n")

    began_s = time.monotonic()
    done = hosts.run()

    assert time.monotonic() - began_s < 60
    assert done["algo-1"].status == done["algo-2"].status != 0
    assert str(done["algo-1"].failure).startswith("InstallRequirementsError")
    assert "no-such-folder-here" in str(done["algo-1"].failure)
    assert b"pid" not in done["algo-1"].stdout


def test_a_late_host_is_waited_for(hosts: Hosts) -> None:
    for name in hosts.bases:
        hosts.program(name, ENDS)
    with hosts.start("algo-1") as first:
        first["algo-1"].until(b"Invoking script")
        time.sleep(1.5)
        early = first["algo-1"].out
        with hosts.start("algo-2") as second:
            done = [first["algo-1"].end(), second["algo-2"].end()]

    assert [end.status for end in done] == [0, 0]
    assert b"done" not in early


@pytest.mark.parametrize("present", ["algo-1", "algo-2"])
def test_an_absent_host_is_named_at_the_deadline(hosts: Hosts, present: str) -> None:
    (absent,) = hosts.bases.keys() - {present}
    hosts.program(present, WAITS)

    began_s = time.monotonic()
    with hosts.start(present, TOOLKIT_JOIN_S="2") as running:
        done = running[present].end()

    assert done.status == 75
    assert f"waited 2 s in vain for host {absent}" in str(done.failure)
    assert b"pid" not in done.stdout
    assert time.monotonic() - began_s < 60


def test_a_leader_that_cannot_look_up_a_host_that_is_there_says_so(hosts: Hosts) -> None:
    hosts = Hosts(hosts.folder / "more", ("algo-1", "nowhere.invalid"))
    for name in hosts.bases:
        hosts.program(name, ENDS)
    more = {"TOOLKIT_JOIN_S": "2", "TOOLKIT_HOST_ADDRESSES": "algo-1=127.0.0.1"}
    with hosts.start("nowhere.invalid") as stray, hosts.start("algo-1", **more) as regular:
        done = [regular["algo-1"].end(), stray["nowhere.invalid"].end()]

    assert [end.status for end in done] == [75, 75]
    for end in done:
        assert "in vain for host nowhere.invalid to resolve" in str(end.failure)


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("MASTER_PORT", "0", "MASTER_PORT: expected a port"),
        ("TOOLKIT_JOB_SECRET_FILE", "/dev/null", "a device, no regular file"),
    ],
)
def test_a_setting_of_the_link_that_is_none_ends_the_job_with_78(
    hosts: Hosts, variable: str, value: str, message: str
) -> None:
    hosts.program("algo-1", ENDS)
    more = {"TOOLKIT_LINK_PORT": ""} if variable == "MASTER_PORT" else {}
    with hosts.start("algo-1", **more, **{variable: value}) as running:
        done = running["algo-1"].end()

    assert done.status == 78
    assert message in str(done.failure)


def test_a_stop_while_waiting_for_the_others_ends_within_the_grace_or_at_once_if_it_is_repeated(hosts: Hosts) -> None:
    for name, grace_s in (("algo-1", "1"), ("algo-2", "1"), ("algo-1", "300"), ("algo-2", "300")):
        hosts.program(name, WAITS)
        with hosts.start(name, TOOLKIT_GRACE_S=grace_s) as running:
            running[name].until(b"Invoking script")
            began_s = time.monotonic()
            running[name].signal(signal.SIGTERM)
            if grace_s == "300":
                running[name].until(b"waiting up to 30 s for host ")
                time.sleep(SAME_REQUEST_S)
                running[name].signal(signal.SIGTERM)
            done, took_s = await_end(running[name], began_s)

        assert done.status == 143
        assert b"pid" not in done.stdout
        assert took_s < 25


@pytest.mark.parametrize("stopped", ["algo-1", "algo-2"])
def test_a_stop_of_a_host_before_the_join_is_heard_by_the_one_that_comes_later(hosts: Hosts, stopped: str) -> None:
    late = "algo-2" if stopped == "algo-1" else "algo-1"
    for name in hosts.bases:
        hosts.program(name, WAITS)
    with hosts.start(stopped) as first:
        first[stopped].until(b"Invoking script")
        first[stopped].signal(signal.SIGTERM)
        first[stopped].until(b"waiting up to 30 s for host ")
        with hosts.start(late) as second:
            done = [first[stopped].end(), second[late].end()]

    assert [end.status for end in done] == [143, 143]
    assert not any(b"pid" in end.stdout for end in done)


def test_a_stop_is_heard_while_the_name_server_says_nothing_of_the_leader(tmp_path: Path) -> None:
    """glibc asks it three times here, for half a minute each."""
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode != 0:
        pytest.skip("needs to be root: a resolv.conf of its own")
    base = Base(tmp_path)
    base.resources(["algo-1.train.example", "algo-2"], current="algo-2")
    base.program("")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.settimeout(60.0)
        silent.bind(("127.0.0.77", 53))
        resolv = tmp_path / "resolv.conf"
        resolv.write_text("nameserver 127.0.0.77\noptions timeout:30 attempts:3\n")
        script = 'mount --bind "$0" /etc/resolv.conf && exec "$@"'
        command = ["unshare", "--mount", "sh", "-c", script, str(resolv), *TRAIN]
        environ = {"TOOLKIT_LINK": "on", "TOOLKIT_LINK_PORT": str(free_port()), "TOOLKIT_GRACE_S": "1"}
        with live(base, command=command, **environ) as running:
            silent.recv(512)  # It asks.
            running.signal()
            done = running.end(deadline_s=60)

    assert done.status == 143
    assert "stopped by SIGTERM" in str(done.failure)


@pytest.mark.parametrize("leader", ["is found", "is not there"])
def test_hosts_whose_names_have_addresses_that_lead_nowhere_meet(hosts: Hosts, leader: str) -> None:
    """Debian has a host's own name at 127.0.1.1; 10.77.0.3 drops packets, 172.17.0.1 is docker0 on every host. Neither
    host's first address leads to it."""
    if reason := cage.network():
        pytest.skip(reason)
    names = {"algo-1": "node-a", "algo-2": "node-b"}
    hosts.environ["TOOLKIT_HOST_ADDRESSES"] = ",".join("=".join(pair) for pair in names.items())
    host_files = ("127.0.1.1 node-a\n10.77.0.2 node-b\n172.17.0.1 node-b\n", "10.77.0.2 node-b\n172.17.0.1 node-b\n")
    leads = "10.77.0.3 node-a\n172.17.0.1 node-a\n" + "10.77.0.1 node-a\n" * (leader == "is found")
    with cage.Network(f"names{os.getpid()}", 2) as network, contextlib.ExitStack() as stack:
        running = {}
        for number, (name, text) in enumerate(zip(names, (host_files[0], host_files[1] + leads), strict=True), 1):
            table = hosts.folder / f"hosts-{number}"
            table.write_text(text)
            hosts.program(name, ENDS)
            script = (
                "ip addr add 172.17.0.1/16 dev lo && ip neigh add 10.77.0.3 lladdr 02:00:00:00:00:03 dev eth0"
                ' && mount --bind "$0" /etc/hosts && exec "$@"'
            )
            command = (*network.prefix(number), "unshare", "--mount", "sh", "-c", script, str(table), *TRAIN)
            environ = {**hosts.environ, "TOOLKIT_JOIN_S": "60" if leader == "is found" else "6"}
            running[name] = stack.enter_context(live(hosts.bases[name], command=command, **environ))
        done = {name: end.end() for name, end in running.items()}

    if leader == "is found":
        assert [end.status for end in done.values()] == [0, 0]
        return
    assert [end.status for end in done.values()] == [75, 75]
    link_port = hosts.environ["TOOLKIT_LINK_PORT"]
    assert f"10.77.0.3 port {link_port} (no answer)" in str(done["algo-2"].failure)
    assert f"172.17.0.1 port {link_port} (nothing listens there)" in str(done["algo-2"].failure)


def test_the_same_secret_from_a_file_lets_in(hosts: Hosts) -> None:
    secret = hosts.folder / "secret"
    secret.write_text("one\n")
    for name in hosts.bases:
        hosts.program(name, ENDS)
    with (
        hosts.start("algo-1", TOOLKIT_JOB_SECRET="one") as leader,
        hosts.start("algo-2", TOOLKIT_JOB_SECRET_FILE=str(secret)) as follower,
    ):
        done = [leader["algo-1"].end(), follower["algo-2"].end()]

    assert [end.status for end in done] == [0, 0]


def test_a_second_train_of_a_host_ends_and_the_job_goes_on(hosts: Hosts, tmp_path: Path) -> None:
    for name in hosts.bases:
        hosts.program(name, SAVES)
    again = Base(tmp_path / "again")
    again.resources(list(hosts.bases), current="algo-2")
    again.program(WAITS)
    with hosts.start() as running:
        scripts = [script_of(host) for host in running.values()]
        with live(again, **hosts.environ) as second:
            refused = second.end()
        unharmed = all(alive(pid) for pid in scripts)
        running["algo-1"].signal(signal.SIGTERM)
        done = [host.end() for host in running.values()]

    assert refused.status == 75
    assert "another train of this job is already host algo-2" in str(refused.failure)
    assert unharmed
    assert all(b"saved" in end.stdout for end in done)


def test_without_the_link_each_host_is_on_its_own(hosts: Hosts) -> None:
    hosts.program("algo-1", ENDS)
    hosts.program("algo-2", "raise SystemExit(3)\n")

    done = hosts.run(TOOLKIT_LINK="off")

    assert done["algo-1"].status == 0
    assert done["algo-2"].status == 3


@contextlib.contextmanager
def taken_ports(count: int) -> Iterator[int]:
    """Take *count* of the ports that a leader tries, the first ones; yield the first. Whoever connects is sent away."""
    while True:
        port = free_port()
        with contextlib.ExitStack() as stack:
            try:
                servers = [
                    stack.enter_context(socket.create_server(("127.0.0.1", port - 100 * number)))
                    for number in range(count)
                ]
            except OSError:
                continue
            for server in servers:
                threading.Thread(target=sends_away, args=(server,), daemon=True).start()
            yield port
            for server in servers:
                server.shutdown(socket.SHUT_RDWR)
            return


def sends_away(server: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while True:
            server.accept()[0].close()


def test_where_the_links_port_is_taken_the_hosts_meet_at_another(hosts: Hosts) -> None:
    for name in hosts.bases:
        hosts.program(name, ENDS)

    with taken_ports(2) as port:
        ends = hosts.run(TOOLKIT_LINK_PORT=str(port))

    assert {name: done.status for name, done in ends.items()} == {"algo-1": 0, "algo-2": 0}
    assert f"link: port {port} is taken (Address already in use): using port {port - 200}" in ends["algo-1"].log


def test_ports_that_are_all_taken_are_named(hosts: Hosts) -> None:
    hosts.program("algo-1", WAITS)

    with taken_ports(3) as port, contextlib.ExitStack() as stack:
        environ = hosts.bases["algo-1"].environ(**{**hosts.environ, "TOOLKIT_LINK_PORT": str(port)})
        job = platforms.detect(environ).read(
            environ,
            settings.read(environ),
            Machine(cpus=1, cpus_total=1, memory_bytes=1 << 30, interfaces=("lo",), route_interface="lo"),
            Log(),
            interpreter=sys.executable,
        )
        ports = link_ports(job)
        for busy_port in ports[3:]:
            with contextlib.suppress(OSError):  # Another program's: taken, too.
                stack.enter_context(socket.create_server(("127.0.0.1", busy_port)))
        running = stack.enter_context(hosts.start("algo-1", TOOLKIT_LINK_PORT=str(port)))
        done = running["algo-1"].end()

    assert done.status == 75
    assert ports[:3] == (port, port - 100, port - 200)
    assert f"cannot listen on port {' or '.join(map(str, ports))} for the job's other hosts" in done.log
    assert "TOOLKIT_LINK_PORT" in done.log


@pytest.mark.parametrize("difference", ["a hyperparameter", "the list of hosts"])
def test_hosts_with_one_secret_and_other_documents_end_with_78_and_what_differs(hosts: Hosts, difference: str) -> None:
    for name in hosts.bases:
        hosts.program(name, ENDS)
    if difference == "a hyperparameter":
        hosts.bases["algo-2"].hyperparameters({"lr": "0.1"})
    else:
        hosts.bases["algo-2"].resources(["algo-1", "algo-2", "algo-3"], current="algo-2")

    done = hosts.run(TOOLKIT_JOB_SECRET="the same", TOOLKIT_JOIN_S="60")

    for end in done.values():
        assert end.status == 78
        assert f"host algo-2 and host algo-1, the leader, are not of one job: {difference} differs" in str(end.failure)
        assert b"done" not in end.stdout


def test_two_jobs_on_the_same_hosts_find_their_own_leaders(hosts: Hosts, tmp_path: Path) -> None:
    """The second job's follower starts long before its leader, and meets the first job's at the port."""
    other = Hosts(tmp_path / "other")
    other.environ = {**hosts.environ, "TRAINING_JOB_NAME": "other"}
    for job in (hosts, other):
        job.program("algo-1", WAITS)
        job.program("algo-2", WAITS)
    with hosts.start("algo-1") as first_leader, other.start("algo-2") as second:
        first_leader["algo-1"].until(b"host algo-2")
        with hosts.start("algo-2") as first, other.start("algo-1") as second_leader:
            for running in (first_leader["algo-1"], second["algo-2"], first["algo-2"], second_leader["algo-1"]):
                running.until(b" up")
            first_leader["algo-1"].signal()
            second_leader["algo-1"].signal()
            statuses = {
                running.end().status
                for running in (first_leader["algo-1"], second["algo-2"], first["algo-2"], second_leader["algo-1"])
            }

    assert 78 not in statuses
    assert 75 not in statuses


def test_a_host_with_another_secret_ends_the_job_in_seconds_and_is_named_by_all(tmp_path: Path) -> None:
    hosts = Hosts(tmp_path, ("algo-1", "algo-2", "algo-3"))
    for name in hosts.bases:
        hosts.program(name, ENDS)

    with (
        hosts.start("algo-1", "algo-2", TOOLKIT_JOB_SECRET="one") as running,
        hosts.start("algo-3", TOOLKIT_JOB_SECRET="other") as wrong,
    ):
        ends = [host.end(deadline_s=60) for host in (*running.values(), *wrong.values())]

    assert [done.status for done in ends] == [78, 78, 78]
    assert "link: refused a message that is not sealed with this job's key" in ends[0].log
    assert all("host algo-3 was refused: its TOOLKIT_JOB_SECRET" in str(done.failure) for done in ends[:2]), ends
    assert "refuses this host, algo-3: its TOOLKIT_JOB_SECRET" in str(ends[2].failure)
