"""Runs one fault on a job's hosts and says what was wrong about what they did: nothing, where all is well."""

import contextlib
import os
import re
import shutil
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from tests.clocks import WallClock, build, missing
from tests.faults import cage
from tests.faults.hosts import Host, Hosts
from tests.faults.launchers import ENGINES, Launcher
from tests.faults.table import COLLATERAL, GIVEN_UP, Fault
from toolkit.commands import jobs
from toolkit.commands.jobs.explaining import explain
from toolkit.job.explanation import LIMIT_BYTES, write_json, write_text
from toolkit.records import Record
from toolkit.train.supervise.signals import SAME_REQUEST_S

HERE_S = 300.0
# A host that should have ended long ago is given up.
OVERDUE_S = 45.0
LATE_S = 3.0
# Longer than a follower takes to look for its leader at other ports, and to take a refusal for the last word.
OTHER_JOB_S = 6.0
# How often a round is made that came to nothing, because this machine was too slow for its fault.
TRIES = 5


class Result(Record, frozen=True, kw_only=True):
    """The figures of one round. Seconds from the fault: until every other host had named the faulty one, and until the
    last of them had ended (None: not a matter of this fault). `wrong`: each thing that was not as it should be.
    `too_late`: why the round shows nothing: this machine was too slow for the fault.
    `crowd`: how many other processes wanted each core, at the start or the end (crowd())."""

    fault: str
    launcher: Launcher
    hosts: int
    codes: tuple[int | None, ...]
    detect_s: float | None
    end_s: float | None
    left: int
    crowd: float
    wrong: tuple[str, ...]
    logs: str
    too_late: str = ""


def crowd() -> float:
    """Return how many processes want each core beyond the one that it can run, now or in the last minute; 0 for few."""
    minute, _, _, now, _ = Path("/proc/loadavg").read_text().split()
    most = max(float(minute), int(now.partition("/")[0]) - 1)  # One of those that run now is this.
    return max(0.0, most / (os.cpu_count() or 1) - 1.0)


def why_not(fault: Fault, launcher: Launcher) -> str:
    """Return why *fault* cannot be tried here under *launcher*, "" if it can."""
    if reason := ENGINES[launcher].missing:
        return reason
    if fault.cage == "network":
        return cage.network()
    if fault.cage == "small-packets":
        return cage.small_packets()
    if fault.cage in ("full", "read-only"):
        return cage.mounts()
    if fault.cage == "clock":
        return missing()
    return cage.memory() if fault.cage == "memory" else ""


def run(
    fault: Fault, launcher: Launcher, count: int, *, patience_s: float | None = None, slack_s: float = 0.0
) -> Result:
    """Let a job of *count* hosts meet *fault*. *patience_s*: TOOLKIT_HEARTBEAT_TIMEOUT_S, the default if not given.
    *slack_s*: how many seconds longer than the fault says everything may take. A round for whose fault this machine was
    too slow is made again, and that is said on stderr."""
    for number in range(1, TRIES + 1):
        result = _once(fault, launcher, count, patience_s=patience_s, slack_s=slack_s)
        if not result.too_late:
            return result
        again = "once more" if number < TRIES else "given up"
        print(f"{fault.name}, {launcher}, {count} hosts: {result.too_late}: {again}", file=sys.stderr, flush=True)
    return msgspec.structs.replace(result, wrong=(f"{result.too_late}, {TRIES} times",))


def _once(fault: Fault, launcher: Launcher, count: int, *, patience_s: float | None, slack_s: float) -> Result:
    environ = (
        dict(fault.environ) if patience_s is None else {**fault.environ, "TOOLKIT_HEARTBEAT_TIMEOUT_S": str(patience_s)}
    )
    folder = Path(tempfile.mkdtemp(prefix="faults-"))
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        target = "algo-1" if fault.at == "leader" else f"algo-{count}"
        words = {"fault": fault.program, "at": target, "steps": str(fault.steps)}
        hosts = stack.enter_context(
            Hosts(folder, count, launcher, per_host=fault.per_host, environ=environ, words=words)
        )
        return _Round(fault, hosts, target, slack_s, stack).result()


class _Round:
    """One job, one fault."""

    def __init__(self, fault: Fault, hosts: Hosts, target: str, slack_s: float, stack: contextlib.ExitStack) -> None:
        self._fault = fault
        self._hosts = hosts
        self._at = target
        self._slack_s = slack_s
        self._others = [host for host in hosts.all.values() if host.name != target]
        self._cut: Callable[[], None] = lambda: None
        self._heal: Callable[[], None] = lambda: None
        self._wrong: list[str] = []
        self._too_late = ""
        # The host whose `train` is stopped until the others have ended.
        self._still = {"SIGSTOP": target, "SIGSTOP last": list(hosts.all)[-1]}.get(fault.act, "")
        self._other_job: Hosts | None = None
        self._since_ns = 0
        self._crowds = [crowd()]
        self._stack = stack

    def result(self) -> Result:
        fault, hosts = self._fault, self._hosts
        self._set_up()
        self._bring_about()
        awaited = [self._still] if self._still else []
        if not self._too_late and not hosts.until(lambda: hosts.over(*awaited), fault.end_s + OVERDUE_S):
            self._wrong.append(f"not ended {fault.end_s + OVERDUE_S:g} s after the fault")
        self._crowds.append(crowd())
        detect_s, end_s = self._detection_s(), self._end_s()
        if awaited:
            hosts.signal(self._still, signal.SIGCONT)
            if not hosts.until(hosts.over, OVERDUE_S):
                self._wrong.append(f"{self._still} had not ended {OVERDUE_S:g} s after SIGCONT")
        left = hosts.sweep()
        if left:
            self._wrong.append(f"{len(left)} processes left over")
        for host in hosts.all.values():
            self._judge(host)
        self._judge_explanation()
        if self._other_job is not None:
            self._judge_other_job(self._other_job)
        return Result(
            fault=fault.name,
            launcher=hosts.launcher,
            hosts=len(hosts.all),
            codes=tuple(host.code for host in hosts.all.values()),
            detect_s=detect_s,
            end_s=end_s,
            left=len(left),
            crowd=max(self._crowds),
            wrong=tuple(self._wrong),
            logs="" if not self._wrong else "\n".join(self._told()),
            too_late=self._too_late,
        )

    # --- before

    def _set_up(self) -> None:
        kind, stack = self._fault.cage, self._stack
        exists = self._hosts.all[self._at]
        tag = f"faults{uuid.uuid4().hex[:6]}"
        if kind in ("network", "small-packets"):
            network = stack.enter_context(cage.Network(tag, len(self._hosts.all)))
            for number, host in enumerate(self._hosts.all.values(), 1):
                host.prefix, host.address = network.prefix(number), network.address(number)
            number = int(self._at.removeprefix("algo-"))
            self._cut, self._heal = lambda: network.cut(number), lambda: network.heal(number)
            if self._fault.outage_s:
                network.far_apart()
            if kind == "small-packets":
                network.lose_large(number, 900)
        elif kind in ("proxy", "small-messages"):
            largest_bytes = 1200 if kind == "small-messages" else 0
            ports = (self._hosts.spare_port, self._hosts.link_port)
            proxy = stack.enter_context(cage.Proxy(*ports, largest_bytes=largest_bytes))
            exists.environ["TOOLKIT_LINK_PORT"] = str(self._hosts.spare_port)
            self._cut = proxy.cut
        elif kind == "full":
            stack.enter_context(cage.full(exists.base.output))
        elif kind == "read-only":
            stack.enter_context(cage.read_only(exists.base.output))
        elif kind == "clock":
            clock = WallClock(build(self._hosts.folder), self._hosts.folder / "clock")
            exists.environ.update(clock.environ)
        elif kind == "memory":
            little = stack.enter_context(cage.Memory(tag, ENGINES[self._hosts.launcher].memory_bytes))
            exists.prefix = little.prefix
        stack.callback(self._hosts.sweep)  # Before the cage is opened: nothing of the job may still be inside.

    def _bring_about(self) -> None:
        """Start the hosts and let the fault happen; `_since_ns` is when."""
        fault, hosts = self._fault, self._hosts
        if fault.starts == "misnamed":
            self._since_ns = time.monotonic_ns()
            hosts.all[self._at].address = self._others[0].address
            hosts.start()
            return
        if fault.starts == "other-documents":
            self._since_ns = time.monotonic_ns()
            hosts.write(self._at, lr="0.5")
            hosts.start()
            return
        if fault.starts == "beside-another-job":
            self._since_ns = time.monotonic_ns()
            self._start_beside_another_job()
            return
        if fault.starts:
            self._since_ns = time.monotonic_ns()
            hosts.start(*(host.name for host in self._others))
            if fault.starts == "late":
                hosts.pause(LATE_S)
                hosts.start(self._at)
            return
        hosts.start()
        started = hosts.until(lambda: hosts.all_here or hosts.over(), HERE_S) and hosts.all_here
        if not started:
            self._wrong.append(f"not every rank had begun after {HERE_S:g} s")
        elif fault.act:
            hosts.pause(0.2)
            self._since_ns = time.monotonic_ns()
            self._act()
        elif fault.program:
            hosts.until(lambda: hosts.fault_ns is not None or hosts.over(), HERE_S)
        self._since_ns = hosts.fault_ns or self._since_ns or time.monotonic_ns()

    def _act(self) -> None:
        hosts, act = self._hosts, self._fault.act
        if act in ("cut", "outage"):
            self._cut()
            if act == "outage":
                hosts.pause(self._fault.outage_s)
                self._heal()
            return
        name, _, how = act.partition(" ")
        hosts.signal(self._still or self._at, signal.Signals[name])
        if how == "then start":
            self._start_again()
        elif how == "last":
            (hosts.meet / "told").touch()
        elif how == "twice all":
            for host in (hosts.all[self._at], *self._others, *self._others):
                hosts.pause(0.005)
                hosts.signal(host.name, signal.Signals[name])
        elif how == "all":
            for host in self._others:
                hosts.pause(0.02)
                hosts.signal(host.name, signal.Signals[name])
        elif how == "then SIGKILL":
            hosts.pause(0.5)
            hosts.signal(self._at, signal.SIGKILL)
        elif how == "twice":
            target = hosts.all[self._at]
            hosts.until(lambda: target.heard("passed on", self._since_ns) is not None, 10.0)
            hosts.pause(SAME_REQUEST_S)
            hosts.signal(self._at, signal.Signals[name])

    def _start_again(self) -> None:
        """Start the killed leader again, and wait for the others. Its new process comes too late if one of them has
        given it up: then it knows nothing of the job, and waits for hosts that never come."""
        hosts, target = self._hosts, self._hosts.all[self._at]
        hosts.until(lambda: target.code is not None, OVERDUE_S)
        hosts.start(self._at)
        hosts.until(lambda: target.heard("", self._since_ns) is not None, OVERDUE_S)
        up_s = (time.monotonic_ns() - self._since_ns) / 1e9
        hosts.until(lambda: hosts.over(self._at), self._fault.end_s + OVERDUE_S)
        if any(GIVEN_UP in host.failure for host in self._others):
            self._too_late = f"{self._at} was up again {up_s:.2f} s after its end, when it had been given up"

    def _start_beside_another_job(self) -> None:
        """Start the others, and a job with the same hosts and ports in the opposite order."""
        hosts, fault = self._hosts, self._fault
        other = self._other_job = self._stack.enter_context(
            Hosts(
                hosts.folder / "other",
                len(hosts.all),
                hosts.launcher,
                per_host=fault.per_host,
                environ={**fault.environ, "TRAINING_JOB_NAME": "other"},
                words={"fault": "", "at": self._at, "steps": str(fault.steps)},
                link_port=hosts.link_port,
            )
        )
        leader, *followers = other.all
        hosts.start(*(host.name for host in self._others))
        other.start(*followers)
        hosts.pause(OTHER_JOB_S)
        hosts.start(self._at)
        other.start(leader)

    def _judge_other_job(self, other: Hosts) -> None:
        """Wait for the job beside this one, in which nothing goes wrong."""
        if not other.until(other.over, OVERDUE_S):
            self._wrong.append(f"the other job had not ended {OVERDUE_S:g} s later")
        for host in other.all.values():
            if host.code != 0:
                self._wrong.append(f"{host.name} of the other job ended with {host.code}: {host.failure!r}")
        if left := other.sweep():
            self._wrong.append(f"{len(left)} processes of the other job left over")

    # --- after

    def _detection_s(self) -> float | None:
        if self._fault.detect_s is None:
            return None
        limit_s = self._fault.detect_s + self._longer_s
        heard_ns = [
            host.heard(f"{self._at} " if host.name != self._at else "", self._since_ns) for host in self._others
        ]
        tells_all = self._fault.act.endswith(" all")  # Who was told itself need not have heard it of another.
        for host, ns in zip(self._others, heard_ns, strict=True):
            if ns is None and not tells_all:
                self._wrong.append(f"{host.name} never named {self._at}")
        if not heard_ns or None in heard_ns:
            return None
        worst_s = (max(ns for ns in heard_ns if ns is not None) - self._since_ns) / 1e9
        if worst_s > limit_s:
            self._wrong.append(f"{self._at} was named after {worst_s:.2f} s, {limit_s:.2f} s at most were expected")
        return worst_s

    def _end_s(self) -> float | None:
        ends = [host.ended_ns for host in self._hosts.all.values() if host.ended_ns is not None]
        if not ends:
            return None
        worst_s = (max(ends) - self._since_ns) / 1e9
        latest_s = self._fault.end_s + self._longer_s
        if worst_s > latest_s:
            self._wrong.append(f"the last host ended after {worst_s:.2f} s, {latest_s:.2f} s at most expected")
        ended_ns, limit_s = self._hosts.all[self._at].ended_ns, self._fault.end_there_s
        if limit_s is not None and ended_ns is not None:
            took_s, limit_s = (ended_ns - self._since_ns) / 1e9, limit_s + self._longer_s
            if took_s > limit_s:
                self._wrong.append(f"{self._at} ended after {took_s:.2f} s, {limit_s:.2f} s expected")
        return worst_s if self._fault.detect_s is not None else None

    @property
    def _longer_s(self) -> float:
        """Return how much longer everything may take than on a machine that has nothing else to do."""
        return self._slack_s + ENGINES[self._hosts.launcher].work_s * max(self._crowds)

    def _judge(self, host: Host) -> None:
        """Note what *host* should have ended with and said, and did not; and what it said and should not have."""
        fault, is_target = self._fault, host.name == self._at
        if host.process is None:
            return
        code = fault.code if not is_target or fault.code_there is None else fault.code_there
        if host.code != code:
            self._wrong.append(f"{host.name} ended with {host.code}, {code} was expected")
        if is_target and fault.says_there is None:
            return
        text = host.failure[:1024]
        if code == 0:
            if text:
                self._wrong.append(f"{host.name} says it failed: {text!r}")
            if fault.saved and not list(self._hosts.meet.glob(f"saved-{host.name}-*")):
                self._wrong.append(f"{host.name} was not left to save")
            return
        says = list(fault.says_there if is_target and fault.says_there else fault.says)
        everybodys = fault.stall or fault.starts in (
            "misnamed",
            "other-documents",
        )  # A hang; what the leader says of all.
        if not is_target and not fault.stopped and not everybodys:
            says.append(f"this host, {host.name},|waited")
        words = {"host": self._at, "who": self._who()}
        for expected in (template.format(**words) for template in says):
            if not any(word in text for word in expected.split("|")):
                self._wrong.append(f"{host.name} does not say {expected!r} but {text!r}")
        # SIGTERM is our own, unless one came from outside.
        for word in COLLATERAL if fault.stopped else (*COLLATERAL, "SIGTERM"):
            if word not in fault.own and re.search(re.escape(word), text):
                self._wrong.append(f"{host.name} should not say {word!r}: {text!r}")

    def _judge_explanation(self) -> None:
        """Note what `toolkit why` should say of the hosts' folders together, and does not: cause, culprit, what to do,
        and a line that shows the cause, where the file says that it is."""
        fault, folder = self._fault, self._hosts.folder
        if not fault.code or fault.stopped:
            return
        explanation = explain(jobs.read(folder), now_s=time.time())
        words = {"host": self._at, "who": self._who()}
        for write in (write_text, write_json):
            text = write(explanation)
            if len(text.encode()) > LIMIT_BYTES:
                self._wrong.append(f"`toolkit why` takes {len(text.encode())} bytes: {text!r}")
            for expected in (template.format(**words) for template in fault.says):
                if not any(word in text for word in expected.split("|")):
                    self._wrong.append(f"`toolkit why` does not say {expected!r} but {text!r}")
        line = explanation.evidence
        if not explanation.next_action or line is None:
            self._wrong.append(f"`toolkit why` lacks what to do, or a line that shows it: {explanation}")
        else:
            rest = (folder / line.file).read_bytes()[line.offset_bytes :]
            if line.text[:40] not in rest[:200].decode(errors="replace"):
                self._wrong.append(f"`toolkit why`: {line.file} has no such line at {line.offset_bytes}: {line.text!r}")

    def _who(self) -> str:
        number = int(self._at.removeprefix("algo-")) - 1
        return f"rank {number * self._hosts.per_host}" if self._hosts.launcher != "script" else "script"

    def _told(self) -> Iterator[str]:
        """Yield what the hosts printed, in the order of time, each line with its seconds since the fault."""
        lines = [(ns, host.name, line) for host in self._hosts.all.values() for ns, line in host.lines]
        for ns, name, line in sorted(lines, key=lambda entry: entry[0]):
            yield f"{(ns - self._since_ns) / 1e9:+8.3f} {name}: {line.decode(errors='replace')}"


def machine() -> str:
    """Return what the figures were measured on, in a line."""
    model = ""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip() + ", "
            break
    uname = os.uname()
    return f"{model}{os.cpu_count()} cores, {uname.machine}, Linux {uname.release.split('-')[0]}"
