"""`toolkit.status` in real processes, seen through `train`'s side of the status pages."""

import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.project.test_pythons import interpreters
from tests.project.test_startup import imported_by
from toolkit.status_pages import pages
from toolkit.status_pages.pages import RankStatus, StopNotice

ROOT = Path(__file__).parents[1]
# Does what it is told: each line is an expression, whose value it prints, or a statement.
OBEYS = """
import os, sys
from toolkit import status
for line in sys.stdin:
    try:
        print(repr(eval(line)), flush=True)
    except SyntaxError:
        exec(line)
        print("done", flush=True)
"""
NOTHING = "(False, None, False, None, None)"
ALL = (
    "(status.stop_requested(), status.time_left_s(), status.should_stop(7), status.heartbeat(7), status.progress(0.5))"
)


class Rank:
    """A process that uses status; `do` gives it a line and returns its answer."""

    def __init__(self, folder: Path | None, *, python: str | Path = sys.executable, limit: str = "") -> None:
        self.folder = folder
        environ = {"PYTHONPATH": str(ROOT), **({} if folder is None else {"TOOLKIT_STATUS_FOLDER": str(folder)})}
        self.process = subprocess.Popen(
            [python, "-W", "error", "-c", limit + OBEYS],
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def do(self, line: str) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().rstrip("\n")

    def end(self) -> tuple[int, str]:
        """Return its status and what it said on stderr."""
        _, errors = self.process.communicate(timeout=60)
        return self.process.returncode, errors

    @property
    def status(self) -> RankStatus:
        assert self.folder is not None
        status = pages.read_rank(self.folder / f"rank-{self.process.pid}")
        assert status is not None
        return status


@pytest.fixture
def start() -> Iterator[Callable[..., Rank]]:
    """Starts ranks; those that a test left are ended."""
    ranks: list[Rank] = []

    def started(*arguments: object, **options: object) -> Rank:
        ranks.append(Rank(*arguments, **options))  # type: ignore[arg-type]
        return ranks[-1]

    yield started
    for rank in ranks:
        rank.process.kill()
        rank.process.communicate()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder as `train` makes it."""
    folder = tmp_path / "status"
    folder.mkdir()
    pages.create_stop_page(folder)
    return folder


@pytest.fixture
def rank(folder: Path, start: Callable[..., Rank]) -> Rank:
    return start(folder)


def ask(folder: Path, *, within_s: float = 100.0, step: int | None = None) -> None:
    deadline_ns = time.monotonic_ns() + int(within_s * 1e9)
    pages.request_stop(
        folder, StopNotice(requested_at_ns=time.monotonic_ns(), deadline_ns=deadline_ns, signal=15, stop_step=step)
    )


# What a rank tells


def test_a_heartbeat_tells_step_time_and_pace(rank: Rank) -> None:
    before_ns = time.monotonic_ns()
    rank.do("status.heartbeat(10)")
    first = rank.status
    rank.do("status.heartbeat(12)")
    second = rank.status

    assert (first.pid, first.step, first.heartbeats, first.step_ns) == (rank.process.pid, 10, 1, None)
    assert (second.step, second.heartbeats) == (12, 2)
    assert first.step_time_ns is not None
    assert second.step_time_ns is not None
    assert before_ns < first.step_time_ns < second.step_time_ns < time.monotonic_ns()
    assert second.step_ns == (second.step_time_ns - first.step_time_ns) // 2
    assert (second.progress, second.holding, second.holding_since_ns) == (None, 0, None)


def test_progress_is_told_without_a_step(rank: Rank) -> None:
    rank.do("status.progress(0.25)")

    assert (rank.status.progress, rank.status.step, rank.status.heartbeats) == (0.25, None, 0)


def test_a_checkpoint_is_held_until_the_last_context_is_left(rank: Rank) -> None:
    rank.do("outer, inner = status.holding_checkpoint(), status.holding_checkpoint()")
    statuses = []
    for line in ("outer.__enter__()", "inner.__enter__()", "outer.__exit__(None, None, None)"):
        rank.do(line)
        statuses.append(rank.status)
    rank.do("inner.__exit__(None, None, None)")

    assert [status.holding for status in statuses] == [1, 2, 1]
    assert statuses[0].holding_since_ns == statuses[1].holding_since_ns
    assert (statuses[2].holding_since_ns or 0) > (statuses[1].holding_since_ns or 0)  # The inner one is now the oldest.
    assert (rank.status.holding, rank.status.holding_since_ns) == (0, None)


def test_a_checkpoint_that_failed_is_held_no_longer(rank: Rank) -> None:
    rank.do("import contextlib")
    rank.do("status.heartbeat(1)")

    answer = rank.do("with contextlib.suppress(OSError), status.holding_checkpoint(): raise OSError('full')")

    assert answer == "done"
    assert rank.status.holding == 0


@pytest.mark.parametrize("number", ["'x'", "None", "float('nan')", "float('inf')", "2**63", "-5"])
def test_what_is_no_step_is_not_told_and_breaks_nothing(rank: Rank, number: str) -> None:
    rank.do("status.heartbeat(3)")
    answers = [rank.do(f"status.{name}({number})") for name in ("heartbeat", "should_stop")]

    assert answers == ["None", "False"]
    assert (rank.status.step, rank.status.heartbeats) == (3, 1)


def test_numbers_of_other_kinds_are_taken_as_steps(rank: Rank) -> None:
    rank.do("import fractions")
    rank.do("status.heartbeat(True), status.heartbeat(2.0), status.progress(fractions.Fraction(1, 4))")

    assert (rank.status.step, rank.status.heartbeats, rank.status.progress) == (2, 2, 0.25)


def test_a_program_started_in_the_same_process_starts_anew(rank: Rank) -> None:
    rank.do("status.heartbeat(41)")
    program = "import sys; from toolkit import status; status.heartbeat(2); print(1, flush=True); sys.stdin.read()"

    rank.do(f"os.execv(sys.executable, [sys.executable, '-c', {program!r}])")

    assert (rank.status.step, rank.status.heartbeats) == (2, 1)


# Stops


def test_before_a_stop_is_asked_there_is_none(rank: Rank) -> None:
    assert rank.do(ALL) == NOTHING


def test_a_stop_is_seen_with_the_time_that_is_left(folder: Path, rank: Rank) -> None:
    rank.do(ALL)

    ask(folder, within_s=100)

    assert rank.do("status.stop_requested()") == "True"
    assert 90 < float(rank.do("status.time_left_s()")) < 100


def test_the_time_left_is_never_negative(folder: Path, rank: Rank) -> None:
    ask(folder, within_s=-5)

    assert rank.do("status.time_left_s()") == "0.0"


def test_ranks_stop_from_the_agreed_step_on(folder: Path, rank: Rank) -> None:
    steps = "[status.should_stop(step) for step in (7, 8, 9, 10)]"
    ask(folder)
    first_answer = rank.do(steps)
    ask(folder, step=9)

    assert first_answer == "[False, False, False, False]"
    assert rank.do(steps) == "[False, False, True, True]"


@pytest.mark.parametrize(
    ("left_s", "asked_before_s", "step", "stops"),
    [
        (50, 60, 1000, False),
        (25, 85, 1000, True),  # Within 30 s of SIGKILL.
        (25, 85, None, True),
        (5, 7, 1000, False),
        (3, 9, 1000, True),  # Within a third of a short grace.
    ],
)
def test_a_rank_that_is_too_slow_for_the_agreed_step_is_told_before_the_deadline(
    folder: Path, rank: Rank, left_s: int, asked_before_s: int, step: int | None, stops: bool
) -> None:
    now_ns = time.monotonic_ns()
    stop_notice = StopNotice(
        requested_at_ns=now_ns - asked_before_s * 10**9,
        deadline_ns=now_ns + left_s * 10**9,
        signal=15,
        stop_step=step,
    )
    pages.request_stop(folder, stop_notice)

    assert rank.do("status.should_stop(7)") == str(stops)


def test_where_no_step_can_be_agreed_ranks_stop_at_once(folder: Path, rank: Rank) -> None:
    ask(folder, step=0)

    assert rank.do("status.should_stop(0), status.should_stop('no number')") == "(True, True)"


def test_asking_in_each_step_is_a_heartbeat(rank: Rank) -> None:
    rank.do("status.heartbeat(1), status.should_stop(1), status.should_stop(2), status.should_stop(2)")

    assert (rank.status.step, rank.status.heartbeats) == (2, 2)


def test_sigterm_does_not_end_a_rank_that_was_asked_to_stop(folder: Path, rank: Rank) -> None:
    rank.do("status.stop_requested()")
    ask(folder)

    rank.process.send_signal(signal.SIGTERM)

    assert rank.do("status.stop_requested()") == "True"
    assert rank.end() == (0, "")


def test_sigterm_ends_a_rank_that_was_not_asked_to_stop(rank: Rank) -> None:
    rank.do("status.stop_requested()")

    rank.process.send_signal(signal.SIGTERM)

    assert rank.end() == (-signal.SIGTERM, "")


def test_a_rank_that_only_tells_has_sigterm_as_it_was(folder: Path, rank: Rank) -> None:
    rank.do("status.heartbeat(1)")
    ask(folder)

    rank.process.send_signal(signal.SIGTERM)

    assert rank.end() == (-signal.SIGTERM, "")


def test_a_scripts_own_handler_is_left_alone(folder: Path, rank: Rank) -> None:
    rank.do("import signal")
    rank.do("signal.signal(signal.SIGTERM, lambda *_: os.write(1, b'mine\\n'))")
    rank.do("status.stop_requested()")
    ask(folder)

    rank.process.send_signal(signal.SIGTERM)

    assert rank.process.stdout is not None
    assert rank.process.stdout.readline() == "mine\n"


def test_a_handler_may_hold_a_checkpoint_in_the_middle_of_a_heartbeat(rank: Rank) -> None:
    rank.do("import signal")
    rank.do("held = [0]")
    rank.do("def save(*_): held[0] += 1; hold = status.holding_checkpoint(); hold.__enter__(); hold.__exit__()")
    rank.do("signal.signal(signal.SIGALRM, save), signal.setitimer(signal.ITIMER_REAL, 1e-4, 1e-4)")
    rank.do("step = [0]")
    rank.do("while held[0] < 200: step[0] += 1; status.heartbeat(step[0])")
    rank.do("signal.setitimer(signal.ITIMER_REAL, 0)")

    assert rank.status.heartbeats == rank.status.step == int(rank.do("step[0]"))
    assert rank.status.holding == 0


# Threads and children


def test_threads_tell_what_their_process_does(rank: Rank) -> None:
    rank.do("from threading import Thread")
    rank.do("threads = [Thread(target=lambda: [status.heartbeat(step) for step in range(20000)]) for _ in range(4)]")
    rank.do("[thread.start() for thread in threads], [thread.join() for thread in threads]")

    assert rank.status.step == 19999
    assert 20_000 <= rank.status.heartbeats <= 80_000


def test_a_thread_may_ask_first(folder: Path, rank: Rank) -> None:
    rank.do("from threading import Thread")
    rank.do("seen = []")
    rank.do("thread = Thread(target=lambda: seen.append(status.stop_requested()))")
    ask(folder)

    rank.do("thread.start(), thread.join()")

    assert rank.do("seen") == "[True]"


def test_a_forked_child_writes_nothing_into_its_parents_page(folder: Path, rank: Rank) -> None:
    # A data-loading worker that is forked while the parent saves leaves the parent's context too.
    rank.do("hold = status.holding_checkpoint()")
    rank.do("hold.__enter__(), status.heartbeat(5)")
    rank.do("def child(): hold.__exit__(None, None, None); os._exit(0)")
    status_before = rank.status

    rank.do("(pid := os.fork()) or child()")
    wait_status = rank.do("os.waitpid(pid, 0)[1]")

    assert wait_status == "0"
    assert rank.status == status_before
    assert list(pages.read_all(folder)) == [rank.process.pid]


def test_a_forked_child_has_a_page_of_its_own_once_it_tells(folder: Path, rank: Rank) -> None:
    rank.do("status.heartbeat(5)")
    rank.do("def child(): status.heartbeat(900); status.progress(1); os._exit(0)")
    status_before = rank.status

    pid = int(rank.do("(pid := os.fork()) or child()"))
    rank.do("os.waitpid(pid, 0)")

    assert rank.status == status_before
    assert {status.step for status in pages.read_all(folder).values()} == {5, 900}
    assert pages.read_all(folder)[pid].heartbeats == 1


def test_a_forked_child_dies_of_sigterm_as_ever(folder: Path, rank: Rank) -> None:
    rank.do("status.stop_requested()")
    rank.do("import multiprocessing, signal, time")
    rank.do("make = lambda: multiprocessing.get_context('fork').Process(target=time.sleep, args=(60,))")
    rank.do("children = [make() for _ in range(20)]")
    ask(folder)

    # At once: most children are not yet scheduled when the signal comes.
    rank.do("for child in children: child.start(); child.terminate()")
    rank.do("[child.join(30) for child in children]")

    assert rank.do("{child.exitcode for child in children}") == f"{{{-signal.SIGTERM}}}"
    assert rank.do("signal.pthread_sigmask(signal.SIG_BLOCK, ())") == "set()"


# Nothing there, or broken


def test_without_the_toolkit_nothing_is_said_and_nothing_done(start: Callable[..., Rank], tmp_path: Path) -> None:
    rank = start(None)

    assert rank.do(ALL) == NOTHING
    rank.do("hold = status.holding_checkpoint(); hold.__enter__(); hold.__exit__(None, None, None)")
    assert rank.do("[name for name in ('mmap', 'signal', 'threading') if name in sys.modules]") == "[]"
    assert rank.end() == (0, "")


@pytest.mark.parametrize("obstacle", ["nothing", "a file", "an empty folder", "a short stop", "another version's stop"])
def test_a_folder_that_is_not_as_it_should_be_is_harmless(
    start: Callable[..., Rank], tmp_path: Path, obstacle: str
) -> None:
    status_file = tmp_path / "status"
    if obstacle == "a file":
        status_file.touch()
    elif obstacle != "nothing":
        status_file.mkdir()
    if obstacle == "a short stop":
        (status_file / "stop").write_bytes(b"\1")
    if obstacle == "another version's stop":
        (status_file / "stop").write_bytes((2).to_bytes(8, "little") + b"\1" * 4088)
    rank = start(status_file)

    assert rank.do(ALL) == NOTHING
    assert rank.end() == (0, "")


def test_a_folder_that_vanishes_is_harmless(folder: Path, rank: Rank) -> None:
    rank.do(ALL)
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()

    assert rank.do(ALL) == NOTHING
    assert rank.end() == (0, "")


def test_a_full_disk_is_harmless(folder: Path, start: Callable[..., Rank]) -> None:
    # No file may grow: writing fails as on a full disk.
    rank = start(folder, limit="import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))\n")

    assert rank.do(ALL) == NOTHING
    ask(folder)
    assert rank.do("status.stop_requested()") == "True"
    assert rank.end() == (0, "")


def test_a_file_system_that_takes_no_files_is_harmless(start: Callable[..., Rank]) -> None:
    rank = start(Path("/proc"))  # Also root cannot write here.

    assert rank.do(ALL) == NOTHING
    assert rank.end() == (0, "")


# The import


def test_the_import_is_light() -> None:
    imported = imported_by("from toolkit import status")

    assert imported == {
        "toolkit",
        "toolkit.status",
        "toolkit.status_pages",
        "toolkit.status_pages.layout",
        "struct",
        "_struct",
    }


@pytest.mark.parametrize("version", list(interpreters()) or ["none"])
def test_it_works_on_another_python_without_anything_installed(
    version: str, folder: Path, start: Callable[..., Rank]
) -> None:
    if version == "none":
        pytest.skip("no other Python of 3.10 or newer is installed here")
    rank = start(folder, python=interpreters()[version])

    assert rank.do(ALL) == NOTHING
    ask(folder, step=3)
    assert rank.do("status.should_stop(8)") == "True"
    assert (rank.status.step, rank.status.progress) == (8, 0.5)
    assert rank.end() == (0, "")


# The page


def example(tmp_path: Path) -> Path:
    """Return the program of docs/status.md as a file."""
    page = (ROOT / "docs/status.md").read_text()
    (program,) = re.findall(r"```python\n(# train\.py\n.*?)```", page, re.S)
    path = tmp_path / "train.py"
    path.write_text(program)
    return path


def test_the_example_trains_to_its_end_without_the_toolkit(tmp_path: Path) -> None:
    environ = {"PYTHONPATH": str(ROOT), "SM_MODEL_DIR": str(tmp_path / "model"), "STEP_S": "0"}
    done = subprocess.run(
        [sys.executable, example(tmp_path)], env=environ, capture_output=True, text=True, timeout=60, check=False
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "trained to the end"


def test_the_example_saves_when_it_is_stopped_and_goes_on_from_there(folder: Path, tmp_path: Path) -> None:
    environ = {"PYTHONPATH": str(ROOT), "SM_MODEL_DIR": str(tmp_path / "model"), "TOOLKIT_STATUS_FOLDER": str(folder)}
    program = example(tmp_path)
    with subprocess.Popen(
        [sys.executable, "-u", program], env={**environ, "STEP_S": "0.001"}, stdout=subprocess.PIPE, text=True
    ) as first:
        assert first.stdout is not None
        # From its second heartbeat on it has asked, so that SIGTERM does not end it.
        until_s = time.monotonic() + 60
        while (
            not any(status.heartbeats > 1 for status in pages.read_all(folder).values()) and time.monotonic() < until_s
        ):
            time.sleep(0.001)
        now_ns = time.monotonic_ns()
        step = pages.choose_stop_step(pages.read_all(folder).values(), now_ns, now_ns + 20_000_000)
        ask(folder, step=step)
        first.send_signal(signal.SIGTERM)
        output = first.stdout.read()
    pages.create_stop_page(folder)
    second = subprocess.run(
        [sys.executable, program], env={**environ, "STEP_S": "0"}, capture_output=True, text=True, timeout=60
    )

    assert first.returncode == 0
    stopped = re.search(r"^stopped after step (\d+)$", output, re.M)
    assert stopped is not None
    assert step <= int(stopped[1]) < 1000
    assert f"going on after step {stopped[1]}\n" in second.stdout
    assert second.stdout.endswith("trained to the end\n")
