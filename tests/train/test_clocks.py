"""Wall clocks that are set while a job runs: nothing that is compared or waited for changes."""

import signal
import time
from pathlib import Path

import pytest

from tests.clocks import WallClock, build, missing
from tests.train.base import Base
from tests.train.live import live
from tests.train.test_health import health, pulse_of
from tests.train.test_together import SAVES, WAITS, Hosts

HOUR = 3600
# Raises, and takes a second to end: the other host's script, which waits for it, fails later and ends sooner.
RAISES_SLOWLY = """
import atexit, os, pathlib, time
print("up", flush=True)
while not os.path.exists({meet!r}):
    time.sleep(0.01)
atexit.register(time.sleep, 1)
atexit.register(pathlib.Path({meet!r} + "-raised").touch)
raise RuntimeError("boom, the cause")
"""
FOLLOWS = """
import os, time
print("up", flush=True)
while not os.path.exists({meet!r} + "-raised"):
    time.sleep(0.01)
time.sleep(0.1)
raise ValueError("a consequence")
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if reason := missing():
        pytest.skip(reason)
    return build(tmp_path_factory.mktemp("clock"))


def test_the_library_sets_the_wall_clock_of_what_it_is_told_to_alone(library: Path, base: Base, tmp_path: Path) -> None:
    clock = WallClock(library, tmp_path / "ahead")
    clock.set_ahead(HOUR)
    base.program("import time; print(round(time.time() - time.monotonic()))")

    ahead = base.train(clock.environ)
    real = base.train()

    assert 0 <= int(ahead.stdout) - int(real.stdout) - HOUR <= 1


@pytest.mark.parametrize(("cause_s", "other_s"), [(HOUR, 0), (0, -HOUR)], ids=["cause-ahead", "other-behind"])
def test_a_step_of_one_hosts_clock_makes_no_consequence_the_cause(
    library: Path, tmp_path: Path, cause_s: int, other_s: int
) -> None:
    hosts = Hosts(tmp_path)
    clocks = {name: WallClock(library, tmp_path / f"ahead-{name}") for name in hosts.bases}
    hosts.program("algo-1", RAISES_SLOWLY)
    hosts.program("algo-2", FOLLOWS)

    with (
        live(hosts.bases["algo-1"], **hosts.environ, **clocks["algo-1"].environ) as cause,
        live(hosts.bases["algo-2"], **hosts.environ, **clocks["algo-2"].environ) as other,
    ):
        cause.until(b"up")
        other.until(b"up")
        clocks["algo-1"].set_ahead(cause_s)
        clocks["algo-2"].set_ahead(other_s)
        hosts.meet.touch()
        ends = [cause.end(), other.end()]

    assert [done.status for done in ends] == [1, 1]
    assert all("RuntimeError: boom, the cause" in (done.failure or "") for done in ends), ends
    assert all("host algo-1, " in (done.failure or "") for done in ends), ends


def test_monotonic_clocks_that_have_nothing_in_common_are_compared_over_the_link(library: Path, tmp_path: Path) -> None:
    hosts = Hosts(tmp_path)
    hosts.program("algo-1", RAISES_SLOWLY)
    hosts.program("algo-2", FOLLOWS)
    older = {"LD_PRELOAD": str(library), "CLOCK_MONOTONIC_AHEAD": "8640000"}

    with (
        live(hosts.bases["algo-1"], **hosts.environ, **older) as cause,
        live(hosts.bases["algo-2"], **hosts.environ) as other,
    ):
        cause.until(b"up")
        other.until(b"up")
        hosts.meet.touch()
        ends = [cause.end(), other.end()]

    assert all("RuntimeError: boom, the cause" in (done.failure or "") for done in ends), ends
    for done in ends:
        assert abs(done.outcome["cause"]["failed_ns"] / 1e9 - time.time()) < 120


def test_a_clock_that_goes_ahead_lets_no_host_give_up_a_slower_one(library: Path, tmp_path: Path) -> None:
    hosts = Hosts(tmp_path)
    clock = WallClock(library, tmp_path / "ahead")
    hosts.program("algo-1", WAITS)
    hosts.program("algo-2", SAVES)

    with (
        live(hosts.bases["algo-1"], **hosts.environ, **clock.environ) as first,
        live(hosts.bases["algo-2"], **hosts.environ) as slower,
    ):
        first.until(b"up")
        slower.until(b"up")
        first.signal(signal.SIGTERM)
        slower.until(b"told")
        clock.set_ahead(2 * HOUR)
        ends = [first.end(), slower.end()]

    assert [done.status for done in ends] == [0, 0]
    assert b"saved" in slower.out
    assert not any("vanished" in done.log for done in ends), ends


def test_a_clock_that_goes_back_during_a_stop_leaves_the_stop_a_stop(library: Path, base: Base, tmp_path: Path) -> None:
    clock = WallClock(library, tmp_path / "ahead")
    base.program(WAITS + "import time\nwhile time.time() > 1e9: time.sleep(0.01)\nraise SystemExit(1)\n")

    with live(base, **clock.environ) as run:
        run.until(b"up")
        run.signal(signal.SIGTERM)
        run.until(b"told")
        clock.set_ahead(-int(time.time()) + 2 * HOUR)
        done = run.end()

    assert done.status == 143
    assert done.outcome["status"] == "stopped"


def test_a_clock_that_goes_ahead_makes_no_train_look_dead(library: Path, base: Base, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    clock = WallClock(library, tmp_path / "ahead")
    base.program("import time\nprint('computing', flush=True)\ntime.sleep(600)\n")

    with live(base, TMPDIR=str(scratch)) as run:
        run.until(b"computing")
        pulse_of(run, scratch)
        clock.set_ahead(2 * HOUR)

        assert health(base, TMPDIR=str(scratch), **clock.environ) == (0, "")


def test_a_clock_that_goes_ahead_makes_no_rule_late(library: Path, base: Base, tmp_path: Path) -> None:
    clock = WallClock(library, tmp_path / "ahead")
    rules = tmp_path / "rules.toml"
    rules.write_text('[[rules]]\nname = "loss"\npattern = "loss="\nexpected_again_every_s = 60\naction = "stop"\n')
    base.program(
        "import sys, time\nprint('loss=1', flush=True)\n"
        f"open({str(tmp_path / 'ahead')!r}, 'w').write('7200')\n"
        "time.sleep(1)\nprint('loss=2', flush=True)\n"
    )

    done = base.train(clock.environ, TOOLKIT_RULES=str(rules))

    assert done.status == 0, done
