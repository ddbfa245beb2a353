"""Measure the link of a job with many hosts: one leader, N simulated followers in one other process, real sockets.

    scripts/bench link [--hosts 10,100,1000,10000] [--runs N]

join      the first connection until every host may start
back      every connection breaks at once, while all hosts live: until the leader has all of them again
failing   the leader's host fails: until every follower is told to stop its ranks
verdict   until every follower has answered and has the job's verdict
barrier   every host ends well at the same moment: until every follower has the verdict
leader    its peak memory (VmHWM), and what beats alone cost it, in percent of a core

The leader's host fails at any moment of an interval of heartbeats, drawn anew in each run: with 10,000 followers a
verdict takes a fifth longer among their heartbeats than between. Each figure is the worst follower's, and the worst of
the runs. The followers do everything that real ones do, one after the other on one core, so some of the time is theirs.
Needs two cores and, for 10,000, `ulimit -n` of 11,000.
"""

import argparse
import os
import random
import resource
import select
import socket
import sys
import time
from collections.abc import Callable

from harness import Worker, numbers, parser, peak_mib, print_machine, print_table

from toolkit.job.cause import Cause
from toolkit.job.events import AllReady, PeerFailed
from toolkit.train.peers.follower_link import FollowerLink
from toolkit.train.peers.frames import job_key
from toolkit.train.peers.leader_link import LeaderLink, listen
from toolkit.train.peers.messages import EndReport, Failing, HostEnded, OwnFailure, Ready
from toolkit.train.peers.protocol import Timeouts

KEY = job_key(b"bench", (), b"")
TIMES = Timeouts(heartbeat_s=1.0, heartbeat_timeout_s=8.0, join_s=300.0, finish_timeout_s=0.0, grace_s=10.0)
LEADER = "algo-1"
TIMED = ("join", "failing", "verdict", "barrier", "back")
BEATS_S = 10.0
INTERVAL_S = 2.5  # Of heartbeats, with 10,000 followers.
TRACEBACK = "Traceback (most recent call last):\n" + '  File "train.py", line 100, in step\n    loss.backward()\n' * 400


def names(count: int) -> tuple[str, ...]:
    return tuple(f"algo-{number}" for number in range(1, count + 2))


def lead(count: int) -> None:
    """The leader's process: says its port, then does what comes on stdin, until it has finished."""
    listener = listen("127.0.0.1", 0)
    link = LeaderLink(names(count), KEY, TIMES, listener)
    print(listener.getsockname()[1], flush=True)
    link.tell(Ready())
    failed = EndReport(
        host=LEADER,
        exit_code=1,
        cause=Cause(primary=True, failed_ns=1, message="RuntimeError: boom", traceback=TRACEBACK),
    )
    poll = select.poll()
    poll.register(link.fd, select.POLLIN)
    poll.register(0, select.POLLIN)
    while not link.is_finished:
        for fd, _ in poll.poll(link.due_in_s() * 1000 + 1):
            if fd == 0:
                word = os.read(0, 100)
                if word == b"fail\n":
                    link.tell(Failing(report=failed))
                    link.tell(HostEnded(report=failed))
                elif word == b"end\n":
                    link.tell(HostEnded(report=EndReport(host=LEADER, exit_code=0)))
                elif word == b"cut\n":
                    for connection in list(link._open.values()):
                        connection.sock.shutdown(socket.SHUT_RDWR)
                elif word == b"back\n":
                    print(len(link._of) if link.verdict is None else -1, flush=True)
                elif word == b"cpu\n":
                    print(time.process_time(), flush=True)
                else:
                    raise SystemExit("bench: the followers are gone")
        link.serve()
        link.take()
    if link.refused:
        raise SystemExit(f"bench: {dict(link.refused)}")
    print(peak_mib(), flush=True)


class Followers:
    """*count* followers on one poll."""

    def __init__(self, count: int, port: int) -> None:
        self._poll = select.epoll()
        self.links = [
            FollowerLink(name, LEADER, KEY, TIMES, ("127.0.0.1", port), self._poll) for name in names(count)[1:]
        ]
        self._by_fd: dict[int, FollowerLink] = {}
        self._looked_s = 0.0
        self._over: set[FollowerLink] = set()
        self.started = self.failing = self.settled = 0

    def until(self, done: Callable[[], bool]) -> float:
        """Serve until *done*; return when that was."""
        ends_s = time.monotonic() + 120
        while not done():
            if time.monotonic() > ends_s:
                raise SystemExit("bench: not within 120 s")
            self.serve()
        return time.monotonic()

    def close(self) -> None:
        for link in self.links:
            link.close()
        self._poll.close()

    def serve(self) -> None:
        for fd, events in self._poll.poll(0.02, 1024):
            link = self._by_fd.get(fd)
            if link is not None:
                link.serve_fd(fd, events)
                self._take(link)
        now_s = time.monotonic()
        if now_s - self._looked_s < 0.1:
            return
        self._looked_s = now_s
        for link in self.links:
            if link.due_in_s() <= 0:
                link.serve_time()
                self._take(link)
                for connection in link.connections:
                    self._by_fd[connection.sock.fileno()] = link

    def _take(self, link: FollowerLink) -> None:
        for action in link.take():
            if isinstance(action, AllReady):
                self.started += 1
            elif isinstance(action, PeerFailed):
                self.failing += 1
                link.tell(OwnFailure(report=None))
        if link.verdict is not None and link not in self._over:
            self._over.add(link)
            self.settled += 1


def joined(count: int) -> tuple[Worker, Followers, float]:
    """Return a job that has started, and how long that took."""
    leader = Worker([sys.executable, __file__, "--lead", count])
    followers = Followers(count, leader.read())
    began_s = time.monotonic()
    for link in followers.links:
        link.tell(Ready())
    return leader, followers, followers.until(lambda: followers.started == count) - began_s


def measure_failure(count: int) -> dict[str, float]:
    leader, followers, join_s = joined(count)
    spent_s, until_s = leader.ask("cpu"), time.monotonic() + BEATS_S
    followers.until(lambda: time.monotonic() > until_s)
    beats = (leader.ask("cpu") - spent_s) / BEATS_S * 100
    until_s += random.uniform(0, INTERVAL_S)
    followers.until(lambda: time.monotonic() > until_s)
    began_s = time.monotonic()
    leader.tell("fail")
    failing_s = followers.until(lambda: followers.failing == count) - began_s
    verdict_s = followers.until(lambda: followers.settled == count) - began_s
    memory = leader.read()
    leader.end()
    followers.close()
    return {"join": join_s, "beats": beats, "failing": failing_s, "verdict": verdict_s, "memory": memory}


def measure_barrier(count: int) -> dict[str, float]:
    leader, followers, _ = joined(count)
    return {"barrier": ended(leader, followers)}


def measure_reconnection(count: int) -> dict[str, float]:
    leader, followers, _ = joined(count)
    before = {connection for link in followers.links for connection in link.connections}
    began_s = time.monotonic()
    leader.tell("cut")
    followers.until(lambda: all(link.connections and not before & {*link.connections} for link in followers.links))
    while (here := leader.ask("back")) != count:
        if here < 0:
            raise SystemExit("bench: hosts were not back within the heartbeat timeout")
        followers.serve()
    back_s = time.monotonic() - began_s
    ended(leader, followers)
    return {"back": back_s}


def ended(leader: Worker, followers: Followers) -> float:
    """End all hosts well, and return how long it takes until every follower has the verdict, in seconds."""
    count, began_s = len(followers.links), time.monotonic()
    leader.tell("end")
    for link in followers.links:
        link.tell(HostEnded(report=EndReport(host=link.me, exit_code=0)))
    barrier_s = followers.until(lambda: followers.settled == count) - began_s
    leader.read()
    leader.end()
    followers.close()
    return barrier_s


def row(count: int, runs: int) -> tuple[str, ...]:
    """Return a line of the table: the worst of *runs*."""
    figures = [{**measure_failure(count), **measure_barrier(count), **measure_reconnection(count)} for _ in range(runs)]
    worst = {name: max(run[name] for run in figures) for name in figures[0]}
    times = (f"{worst[name]:.2f} s" for name in TIMED)
    return f"{count:,}", *times, f"{worst['memory']:.0f} MiB", f"{worst['beats']:.1f} %"


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--hosts", type=numbers, default=[10, 100, 1000, 10000], metavar="N,...", help="followers")
    options.add_argument("--runs", type=int, default=1)
    options.add_argument("--lead", type=int, help=argparse.SUPPRESS)
    words = options.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if words.lead is not None:
        lead(words.lead)
        return
    print_machine()
    possible = [count for count in words.hosts if hard == resource.RLIM_INFINITY or hard >= count + 512]
    print_table(("followers", *TIMED, "leader", "beats"), (row(count, words.runs) for count in possible))
    for count in set(words.hosts) - set(possible):
        print(f"\n{count:,} not tried: ulimit -n allows {hard} descriptors")


if __name__ == "__main__":
    main()
