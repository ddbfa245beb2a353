"""One phase from outside: a real supervisor in a process of its own, real scripts and services, real signals."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from tests.train.supervise.runs_a_phase import Wanted
from toolkit.job.outcome import PhaseEnd
from toolkit.train.supervise import kernel

ROOT = Path(__file__).parents[3]
WITHIN_S = 60.0
# A process without a parent of ours, in a session of its own, that ignores SIGTERM; the file has its pid.
HIDES = "setsid sh -c 'trap \"\" TERM; echo $$ > hidden.tmp; mv hidden.tmp hidden; while :; do sleep 0.1; done' &"
UNTIL_HIDDEN = "until [ -e hidden ]; do sleep 0.01; done;"


class Run:
    """A phase that runs in *folder*."""

    def __init__(self, folder: Path, request: Wanted) -> None:
        self.folder = folder
        (folder / "phase.json").write_bytes(msgspec.json.encode(request))
        self.train = subprocess.Popen(
            [sys.executable, "-m", "tests.train.supervise.runs_a_phase", str(folder)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def until(self, name: str) -> str:
        """Return the text of the file *name*, once the phase has made it."""
        ends_s = time.monotonic() + WITHIN_S
        while not (self.folder / name).exists():
            assert time.monotonic() < ends_s, f"no {name}: {self.train.poll()}"
            time.sleep(0.01)
        return (self.folder / name).read_text()

    def end(self) -> tuple[bytes, str]:
        """Wait for the end; return what came on the console and in the log."""
        out, err = self.train.communicate(timeout=WITHIN_S)
        return out, err.decode()

    def ended(self) -> PhaseEnd:
        return msgspec.json.decode((self.folder / "ended.json").read_bytes(), type=PhaseEnd)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    runs: list[Run] = []

    def begin(script: str, **more: object) -> Run:
        runs.append(Run(tmp_path, msgspec.convert({"script": script, **more}, Wanted)))
        return runs[-1]

    yield begin
    for run in runs:
        run.train.kill()
        run.train.communicate()


def lives(pid: int) -> bool:
    return kernel.read_process(pid) is not None


def codes(phase_end: PhaseEnd) -> list[tuple[str, int | None, int | None]]:
    return [(process_exit.process, process_exit.code, process_exit.signal) for process_exit in phase_end.exits]


def test_a_phase_ends_after_its_last_byte_and_with_its_last_process(run: Callable[..., Run]) -> None:
    """An orphan that has left the session, and ignores SIGTERM, is killed, and its status is nobody's."""
    phase = run(f"{HIDES} {UNTIL_HIDDEN} head -c 3000000 /dev/zero | tr '\\0' x; printf end; exit 7")
    hidden = int(phase.until("hidden"))

    out, _ = phase.end()

    assert out == b"x" * 3_000_000 + b"end"
    assert codes(phase.ended()) == [("script", 7, None)]
    assert not lives(hidden)


def test_a_stop_reaches_the_script_alone_and_what_it_leaves_is_ended(run: Callable[..., Run]) -> None:
    phase = run(
        "sh -c 'trap \"echo child was signalled\" TERM; while :; do sleep 0.05; [ -e done ] && exit; done' & "
        "trap 'sleep 0.3; touch done; wait; echo saved; exit 5' TERM; "
        "trap 'echo noticed; touch noticed' USR1; touch ready; while :; do sleep 0.05; done"
    )
    phase.until("ready")

    phase.train.send_signal(signal.SIGUSR1)
    phase.until("noticed")
    phase.train.send_signal(signal.SIGTERM)
    out, err = phase.end()

    assert out == b"noticed\nsaved\n"
    assert codes(phase.ended()) == [("script", 5, None)]
    assert (phase.ended().stopped_by, phase.ended().forced) == (signal.SIGTERM, False)
    assert "SIGTERM received and passed on to script" in err


def test_when_the_grace_is_over_the_script_is_killed(run: Callable[..., Run]) -> None:
    phase = run("trap '' TERM; touch ready; while :; do sleep 0.05; done", grace_s=0.3)
    phase.until("ready")

    phase.train.send_signal(signal.SIGTERM)
    phase.end()

    assert codes(phase.ended()) == [("script", None, signal.SIGKILL)]
    assert phase.ended().forced


def test_a_guardian_that_was_killed_is_replaced_and_still_guards(run: Callable[..., Run]) -> None:
    phase = run(f"{HIDES} {UNTIL_HIDDEN} echo $$ > script; while :; do sleep 0.05; done")
    hidden, guardian = int(phase.until("hidden")), int(phase.until("guardian.pid"))
    phase.until("script")

    os.kill(guardian, signal.SIGKILL)
    ends_s = time.monotonic() + WITHIN_S
    assert phase.train.stderr is not None
    line = phase.train.stderr.readline().decode()
    phase.train.kill()
    phase.end()

    assert "the guardian process was ended by somebody; another has taken its place" in line
    while lives(hidden):
        assert time.monotonic() < ends_s, "nobody ended what the killed train has left"
        time.sleep(0.01)


def test_a_script_that_cannot_be_started_ends_the_services_that_run(run: Callable[..., Run]) -> None:
    phase = run("", services=["echo $$ > service; echo serves; exec sleep 1000"])

    out, _ = phase.end()

    assert "/no/such/program" in phase.until("error.txt")
    assert not (phase.folder / "service").exists() or not lives(int(phase.until("service")))
    assert out in (b"", b"serves\n")


def test_a_fault_of_the_supervisor_kills_the_script_and_keeps_its_output(run: Callable[..., Run]) -> None:
    phase = run(f"{HIDES} {UNTIL_HIDDEN} echo $$ > script; echo said; touch found; exec sleep 1000", rule="fails")

    out, _ = phase.end()

    assert phase.until("error.txt") == "RuntimeError: a fault of the rules"
    assert not lives(int(phase.until("script"))) and not lives(int(phase.until("hidden")))
    assert out == b"said\n"


@pytest.mark.parametrize("rule", ["ends", "stops"])
def test_a_log_rule_ends_the_script_once_and_the_phase_says_which(run: Callable[..., Run], rule: str) -> None:
    phase = run("trap 'echo asked; exit 0' TERM; touch found; while :; do sleep 0.05; done", rule=rule)

    out, err = phase.end()

    phase_end = phase.ended()
    assert out == b"asked\n"
    if rule == "ends":
        assert phase_end.rule_match is not None and (phase_end.rule_match.exit_code, phase_end.stopped_by) == (94, None)
    else:
        assert (phase_end.stop_rule, phase_end.stopped_by, phase_end.rule_match) == (
            "LossNotDecreasing",
            signal.SIGTERM,
            None,
        )
        assert err.count("passed on to script") == 1


def test_a_rank_that_has_ended_when_another_host_fails_has_failed_by_itself(run: Callable[..., Run]) -> None:
    phase = run("touch began; until [ -e go ]; do sleep 0.01; done; exit 3", peer_fails=True)

    phase.end()

    answered = msgspec.json.decode((phase.folder / "answer.json").read_bytes(), type=PhaseEnd)
    assert [(process_exit.code, process_exit.signalled) for process_exit in answered.exits] == [(3, False)]
    assert phase.ended().peer_failed


def test_work_for_later_is_done_while_the_script_runs(run: Callable[..., Run]) -> None:
    phase = run("until [ -e running ]; do sleep 0.01; done; exit 3")

    phase.end()

    assert [end.code for end in phase.ended().exits] == [3]
