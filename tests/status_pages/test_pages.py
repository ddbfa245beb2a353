"""`train`'s side of the status pages: what is told to ranks and read of them, whatever the files hold."""

import math
import os
import struct
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as any_of

from toolkit.status_pages import layout, pages
from toolkit.status_pages.pages import RankStatus, StopNotice

ROOT = Path(__file__).parents[2]
SECOND_NS = 1_000_000_000


def body(counters: tuple[int, int] = (3, 3), *, step: int = 12, progress: float = 0.5) -> bytes:
    return layout.RANK_BODY.pack(counters[0], step, 500, 40, 9, progress, 1, 600, counters[1])


def page(pid: int = 77, *, version: int = 1, progress: float = 0.5) -> bytes:
    older = body((2, 2), step=11, progress=0.25)
    return layout.RANK_HEAD.pack(version, pid) + older + body(progress=progress)


def requested_stop(folder: Path) -> StopNotice | None:
    """Return the stop request on the stop page, as a rank reads it."""
    path = folder / layout.STOP_NAME
    body = path.read_bytes()[layout.STOP_HEAD.size :][: layout.STOP_BODY.size] if path.exists() else b""
    fields = layout.read_consistent(lambda: body, layout.STOP_BODY)
    if fields is None or not fields[0]:
        return None
    requested_at_ns, deadline_ns, number, step = fields
    stop_step = None if step == layout.NONE else step
    return StopNotice(requested_at_ns=requested_at_ns, deadline_ns=deadline_ns, signal=number, stop_step=stop_step)


TOLD = RankStatus(
    pid=77, step=12, step_time_ns=500, step_ns=40, heartbeats=9, progress=0.5, holding=1, holding_since_ns=600
)


# Stops


def test_a_page_that_does_not_fit_says_why(tmp_path: Path) -> None:
    code = (
        "import resource, sys; from pathlib import Path; from toolkit.status_pages import pages\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))\n"
        "try: pages.create_stop_page(Path(sys.argv[1]))\n"
        "except OSError as error: print(error.strerror)"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path], cwd=ROOT, capture_output=True, text=True, timeout=60)

    assert done.stdout == "File too large\n", done.stderr


def test_no_stop_is_asked_at_first(tmp_path: Path) -> None:
    pages.create_stop_page(tmp_path)

    assert requested_stop(tmp_path) is None


@pytest.mark.parametrize("step", [None, 0, 41])
def test_what_is_asked_is_what_ranks_are_told(tmp_path: Path, step: int | None) -> None:
    pages.create_stop_page(tmp_path)
    stop = StopNotice(requested_at_ns=5, deadline_ns=6, signal=15, stop_step=step)

    pages.request_stop(tmp_path, stop)

    assert requested_stop(tmp_path) == stop


def test_a_later_word_takes_the_place_of_the_first_in_the_same_file(tmp_path: Path) -> None:
    pages.create_stop_page(tmp_path)
    stat = (tmp_path / "stop").stat()

    pages.request_stop(tmp_path, StopNotice(requested_at_ns=5, deadline_ns=6, signal=15))
    pages.request_stop(tmp_path, StopNotice(requested_at_ns=5, deadline_ns=9, signal=2, stop_step=7))

    after = (tmp_path / "stop").stat()
    assert requested_stop(tmp_path) == StopNotice(requested_at_ns=5, deadline_ns=9, signal=2, stop_step=7)
    assert (after.st_ino, after.st_size) == (stat.st_ino, stat.st_size) == (stat.st_ino, layout.PAGE_BYTES)


def test_laid_again_it_asks_for_nothing(tmp_path: Path) -> None:
    pages.create_stop_page(tmp_path)
    pages.request_stop(tmp_path, StopNotice(requested_at_ns=5, deadline_ns=6, signal=15))

    pages.create_stop_page(tmp_path)

    assert requested_stop(tmp_path) is None


def test_without_a_file_to_tell_ranks_by_nothing_is_told(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        pages.request_stop(tmp_path, StopNotice(requested_at_ns=5, deadline_ns=6, signal=15))

    assert requested_stop(tmp_path) is None
    assert list(tmp_path.iterdir()) == []


# Ranks


def test_a_rank_is_read_field_by_field(tmp_path: Path) -> None:
    (tmp_path / "rank-77").write_bytes(page())

    assert pages.read_rank(tmp_path / "rank-77") == TOLD


def test_what_was_never_told_is_none(tmp_path: Path) -> None:
    head = layout.RANK_HEAD.pack(1, 77)
    (tmp_path / "rank-77").write_bytes(head + layout.RANK_BODY.pack(0, -1, 0, 0, 0, math.nan, 0, 0, 0) * 2)

    assert pages.read_rank(tmp_path / "rank-77") == RankStatus(pid=77)


def test_of_a_rank_killed_in_a_write_the_fields_of_the_write_before_are_read(tmp_path: Path) -> None:
    half_written = body((4, 2), step=13)
    (tmp_path / "rank-77").write_bytes(layout.RANK_HEAD.pack(1, 77) + half_written + body())

    assert pages.read_rank(tmp_path / "rank-77") == TOLD


def test_a_page_without_a_whole_body_is_no_rank(tmp_path: Path) -> None:
    (tmp_path / "rank-77").write_bytes(layout.RANK_HEAD.pack(1, 77) + body((4, 2)) + body((3, 1)))

    assert pages.read_rank(tmp_path / "rank-77") is None


@pytest.mark.parametrize("content", [b"", b"short", page()[:-1], page(version=2)], ids=["empty", "5", "1 less", "v2"])
def test_a_file_that_holds_no_page_of_ours_is_no_rank(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "rank-77").write_bytes(content)

    assert pages.read_rank(tmp_path / "rank-77") is None
    assert pages.read_all(tmp_path) == {}


def test_all_ranks_are_read_and_nothing_else(tmp_path: Path) -> None:
    pages.create_stop_page(tmp_path)
    for pid in (900, 77):
        (tmp_path / f"rank-{pid}").write_bytes(page(pid))
    (tmp_path / "rank-78").write_bytes(page(77))  # A copy that a script made.
    (tmp_path / "rank-x").write_bytes(page())
    (tmp_path / "rank-79").mkdir()
    os.mkfifo(tmp_path / "rank-80")
    (tmp_path / "rank-81").symlink_to(tmp_path / "rank-77")
    (tmp_path / "raised-77.json").write_bytes(b"{}")

    statuses = pages.read_all(tmp_path)

    assert list(statuses) == [77, 900]
    assert statuses[77] == TOLD


def test_a_folder_that_is_gone_holds_no_ranks(tmp_path: Path) -> None:
    assert pages.read_all(tmp_path / "gone") == {}


@given(any_of.binary(max_size=200))
def test_no_bytes_make_reading_fail(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    folder = tmp_path_factory.getbasetemp() / "any"
    folder.mkdir(exist_ok=True)
    for name in ("rank-7", "stop", "raised-7.json"):
        (folder / name).write_bytes(content)

    (
        pages.read_all(folder),
        pages.read_rank(folder / "rank-7"),
        pages.read_raised(folder, 7),
    )


def reads(*bodies: Iterable[int]) -> list[bytes]:
    return [struct.pack("<3q", *body) for body in bodies]


@pytest.mark.parametrize(
    ("values", "consistent"),
    [
        ([(1, 5, 1), (1, 5, 1)], (5,)),
        ([(2, 5, 1), (2, 6, 2), (2, 6, 2)], (6,)),  # met in the middle of a write
        ([(1, 6, 1), (2, 6, 2), (2, 6, 2)], (6,)),  # the first field from before a write, the last from after another
        ([(2, 5, 1)] * 20, None),  # never at rest
    ],
)
def test_a_write_under_way_is_waited_for_but_not_for_ever(
    values: list[tuple[int, int, int]], consistent: tuple[int] | None
) -> None:
    left = iter(reads(*values))

    assert layout.read_consistent(lambda: next(left), struct.Struct("<3q")) == consistent


def test_a_rank_that_writes_all_the_time_is_never_read_half(tmp_path: Path) -> None:
    pages.create_stop_page(tmp_path)
    # After each heartbeat: as many as its step says, and a hundred-thousandth of progress for each.
    program = (
        "from toolkit import status\n"
        "from toolkit.status import _page\n"
        "print(flush=True)\n"
        "page, step = _page(), 0\n"
        "while not status.stop_requested():\n"
        "    step += 1\n"
        "    page.fraction, page.step_ns = step / 1e5, step\n"
        "    page.step, page.heartbeats, page.step_time_ns = step, step, step\n"
        "    page.write()\n"
    )
    environ = {"PYTHONPATH": str(ROOT), "TOOLKIT_STATUS_FOLDER": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", program], env=environ, stdout=subprocess.PIPE) as rank:
        assert rank.stdout is not None
        rank.stdout.readline()
        path = tmp_path / f"rank-{rank.pid}"
        statuses: list[RankStatus] = []
        until_s = time.monotonic() + 30
        while len({status.step for status in statuses}) < 2000 and time.monotonic() < until_s:
            message = pages.read_rank(path)
            if message is not None and message.step is not None:
                statuses.append(message)
        pages.request_stop(tmp_path, StopNotice(requested_at_ns=1, deadline_ns=1, signal=15))

    assert rank.returncode == 0
    assert len(statuses) >= 2000
    assert [
        status
        for status in statuses
        if not status.step == status.heartbeats == status.step_time_ns == status.step_ns
        or status.progress != status.step / 1e5
    ] == []


# Exceptions


def test_an_exception_is_read_as_the_hook_left_it(tmp_path: Path) -> None:
    (tmp_path / "raised-77.json").write_text(
        '{"time_ns": 5, "kind": "torch.OutOfMemoryError", "thread": "other", "text": "Traceback ...\\nb", "more": 1}\n'
    )

    assert pages.read_raised(tmp_path, 77) == pages.Raised(
        time_ns=5, pid=77, kind="torch.OutOfMemoryError", thread="other", text="Traceback ...\nb"
    )


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b'{"time_ns": "x", "kind": "A", "text": ""}', b'{"time_ns": 1}', b"\xff" * 9, b"[" * 100_000],
)
def test_a_file_that_cannot_be_read_is_no_exception(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "raised-77.json").write_bytes(content)

    assert pages.read_raised(tmp_path, 77) is None


def test_a_fifo_in_the_place_of_a_file_does_not_stop_train(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "raised-77.json")

    assert pages.read_raised(tmp_path, 77) is None
    assert pages.read_raised(tmp_path, 78) is None


# The common step. Now is second 100.


def rank(step: int | None, *, ago_s: float = 0.0, step_s: float | None = None) -> RankStatus:
    return RankStatus(
        pid=1,
        step=step,
        step_time_ns=None if step is None else int((100 - ago_s) * SECOND_NS),
        step_ns=None if step_s is None else int(step_s * SECOND_NS),
    )


@pytest.mark.parametrize(
    ("ranks", "step"),
    [
        pytest.param([], 0, id="no rank: at once"),
        pytest.param([rank(None), rank(None)], 0, id="no heartbeats: at once"),
        pytest.param([rank(7)], 9, id="one heartbeat, so no pace: one step more than the next"),
        pytest.param([rank(7, step_s=60)], 8, id="long steps, just begun: the next"),
        pytest.param([rank(7, ago_s=59, step_s=60)], 9, id="long steps, about to end: the one after"),
        pytest.param([rank(7, step_s=60), rank(8, step_s=60)], 9, id="the one ahead counts"),
        pytest.param([rank(7, step_s=60), rank(None)], 8, id="one that tells nothing does not count"),
        pytest.param([rank(700, step_s=0.01)], 1101, id="short steps: 2 s of them, at twice the pace"),
        pytest.param([rank(700, ago_s=90, step_s=0.1)], 742, id="a long silence is no debt of steps"),
        pytest.param([rank(7, step_s=0.1), rank(7, step_s=60)], 48, id="the fastest pace counts for all"),
    ],
)
def test_the_common_step_is_the_first_that_no_rank_passes_before_it_is_told(ranks: list[RankStatus], step: int) -> None:
    chosen = pages.choose_stop_step(ranks, now_ns=100 * SECOND_NS, known_ns=102 * SECOND_NS)

    assert chosen == step


@given(
    any_of.lists(any_of.tuples(any_of.integers(0, 1000), any_of.floats(0, 30), any_of.floats(0.001, 60)), min_size=1),
    any_of.floats(0, 10),
)
def test_no_rank_at_its_pace_passes_the_common_step(ranks_seen: list[tuple[int, float, float]], told_s: float) -> None:
    ranks = [rank(step, ago_s=ago_s, step_s=step_s) for step, ago_s, step_s in ranks_seen]

    chosen = pages.choose_stop_step(ranks, now_ns=100 * SECOND_NS, known_ns=int((100 + told_s) * SECOND_NS))

    for step, ago_s, step_s in ranks_seen:
        # Its next heartbeat is due, or overdue and comes now; then one each step_s until all are told.
        next_s = max(0.0, step_s - ago_s)
        assert chosen > step + (1 + (told_s - next_s) // step_s if next_s <= told_s else 0)
