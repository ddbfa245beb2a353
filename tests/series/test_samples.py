"""Samples come back as they were written: whole, reduced, cut off, capped and in spite of the clock."""

import errno
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.series.made import START_S, machine, record
from toolkit.errors import UserError
from toolkit.series import arrays
from toolkit.series.column import SampleColumn
from toolkit.series.sample_reader import read
from toolkit.series.sample_writer import SampleWriter

TWO = (SampleColumn(name="cpu/all/used_percent", unit="%"), SampleColumn(name="gpu/0/power_watts", unit="W"))
CPU, POWER = (column.name for column in TWO)


def write(
    folder: Path, seconds: float, *, every_s: float = 0.5, start_s: float = START_S, **options: int
) -> SampleWriter:
    """Write CPU = number of the sample modulo 100, power = its second; the writer is left open."""
    writer = SampleWriter(folder, TWO, warn=pytest.fail, **options)
    for number in range(int(seconds / every_s)):
        time_s = start_s + number * every_s
        writer.add(time_s, (number % 100, time_s // 1 - start_s))
    return writer


def test_a_recording_shorter_than_two_minutes_comes_back_raw(tmp_path: Path) -> None:
    write(tmp_path, 100).close()

    samples = read(tmp_path)
    series = samples.series(CPU)

    assert samples.columns == TWO
    assert samples.span() == (START_S, START_S + 99.5)
    assert series.x.tolist() == [START_S + number / 2 for number in range(200)]
    assert series.mean.tolist() == [number % 100 for number in range(200)]
    assert series.low.tolist() == series.high.tolist() == series.mean.tolist()


def test_older_values_come_back_as_minimum_maximum_and_mean_of_seconds(tmp_path: Path) -> None:
    write(tmp_path, 600).close()

    series = read(tmp_path).series(CPU, START_S, START_S + 2)

    assert series.x.tolist() == [START_S, START_S + 1, START_S + 2]
    assert (series.low.tolist(), series.mean.tolist(), series.high.tolist()) == ([0, 2, 4], [0.5, 2.5, 4.5], [1, 3, 5])


def test_raw_values_of_at_least_the_last_minute_are_kept(tmp_path: Path) -> None:
    write(tmp_path, 629.5).close()

    samples = read(tmp_path)
    last = samples.series(CPU, samples.span()[1] - 60)  # type: ignore[index]

    assert len(last.x) == 121
    assert 120 <= len(list(samples.series(CPU, samples.span()[1] - 300).x)) < 420  # type: ignore[index]


def test_raw_values_around_a_finding_are_kept(tmp_path: Path) -> None:
    writer = SampleWriter(tmp_path, TWO, warn=pytest.fail)
    for number in range(3600):
        if number == 1200:
            writer.keep(START_S + 580, START_S + 600)
        writer.add(START_S + number / 2, (number % 100, 1.0))
    writer.close()

    samples = read(tmp_path)

    assert len(samples.series(CPU, START_S + 520, START_S + 660).x) == 281
    assert len(samples.series(CPU, START_S + 900, START_S + 1000).x) == 101


@pytest.mark.parametrize("points", [1, 7, 100, 599, 5000])
def test_fewer_points_keep_the_extremes_and_the_mean(tmp_path: Path, points: int) -> None:
    writer = SampleWriter(tmp_path, TWO, warn=pytest.fail)
    for number in range(1200):
        writer.add(START_S + number / 2, (99.0 if number == 301 else 10.0, -5.0 if number == 700 else 3.0))
    writer.close()

    cpu, power = (read(tmp_path).series(name, points=points) for name in (CPU, POWER))

    assert len(cpu.x) <= max(points, 1)
    assert cpu.high.max() == 99
    assert power.low.min() == -5
    assert cpu.x.tolist() == power.x.tolist() == sorted(cpu.x)
    if points == 1:
        assert cpu.mean[0] == pytest.approx((1199 * 10 + 99) / 1200)


def test_what_was_not_measured_is_nan_and_spoils_no_mean(tmp_path: Path) -> None:
    writer = SampleWriter(tmp_path, TWO, warn=pytest.fail)
    for number in range(720):
        writer.add(START_S + number / 2, (math.nan if number % 2 else 4.0, math.nan))
    writer.close()

    cpu, power = (read(tmp_path).series(name, START_S, START_S + 60) for name in (CPU, POWER))

    assert (set(cpu.low), set(cpu.mean), set(cpu.high)) == ({4.0}, {4.0}, {4.0})
    assert np.isnan(power.mean).all()
    assert np.isnan(power.low).all()


def test_slow_samples_are_kept_too(tmp_path: Path) -> None:
    write(tmp_path, 3600, every_s=60).close()

    series = read(tmp_path).series(CPU)

    assert series.mean.tolist() == list(range(60))


def test_a_folder_that_is_not_there_has_no_samples(tmp_path: Path) -> None:
    samples = read(tmp_path / "none")

    assert (samples.columns, samples.span()) == ((), None)


def test_a_column_that_is_not_there_is_a_key_error(tmp_path: Path) -> None:
    write(tmp_path, 1).close()

    with pytest.raises(KeyError, match="gpu/9"):
        read(tmp_path).series("gpu/9/used_percent")


def test_values_that_do_not_fit_the_columns_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected 2 values, one for each column, got 1"):
        SampleWriter(tmp_path, TWO).add(START_S, (1.0,))


def test_a_column_that_comes_later_is_nan_before(tmp_path: Path) -> None:
    writer = write(tmp_path, 10)
    later = SampleColumn(name="rank/3/cpu_percent", unit="%")
    writer.use((*TWO, later))
    for number in range(20):
        writer.add(START_S + 10 + number / 2, (1.0, 2.0, 300.0))
    writer.close()

    samples = read(tmp_path)
    series = samples.series(later.name)

    assert samples.columns == (*TWO, later)
    assert series.x.tolist() == samples.series(CPU).x.tolist() == [START_S + number / 2 for number in range(40)]
    assert np.isnan(series.mean[:20]).all()
    assert set(series.mean[20:]) == {300.0}


def test_a_second_monitor_appends_and_the_pause_is_a_gap(tmp_path: Path) -> None:
    write(tmp_path, 90).close()
    write(tmp_path, 90, start_s=START_S + 390).close()

    samples = read(tmp_path)
    series = samples.series(CPU, points=100)

    assert samples.span() == (START_S, START_S + 479.5)
    assert len(samples.series(CPU).x) == 360
    gap = np.flatnonzero(np.isnan(series.mean))
    assert len(gap) == 1
    assert START_S + 89 < series.x[gap[0]] < START_S + 390


@pytest.mark.parametrize("back_s", [0.3, 5, 45, 200, 90_000])
def test_a_clock_that_jumps_back_breaks_nothing(tmp_path: Path, back_s: float) -> None:
    writer = write(tmp_path, 300)
    for number in range(300):
        writer.add(START_S + 300 - back_s + number / 2, (50.0, 1.0))
    writer.close()

    series = read(tmp_path).series(POWER)
    reduced = read(tmp_path).series(CPU, points=50)

    assert np.all(np.diff(series.x) >= 0)
    assert np.count_nonzero(series.mean == 1.0) >= 150
    assert np.nanmax(reduced.high) == 99


def test_the_cap_drops_the_oldest_seconds_first_and_never_the_minutes(tmp_path: Path) -> None:
    cap = 300_000
    write(tmp_path, 40_000, cap_bytes=cap).close()

    samples = read(tmp_path)
    steps = np.diff(samples.series(CPU).x)

    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 1.2 * cap
    assert samples.span() == (START_S, START_S + 39_999.5)
    assert steps[0] in (10, 60)
    assert steps[-1] == 0.5
    assert set(steps) <= {0.5, 1, 10, 60}
    assert samples.series(CPU, points=5).high.max() == 99


def test_a_full_disk_is_one_warning_and_no_exception(tmp_path: Path) -> None:
    """The limit on a file's size stands for the full disk: the same OSError from the same write."""
    program = (
        "import resource, signal, sys\nfrom pathlib import Path\nfrom toolkit.series.column import SampleColumn\n"
        "from toolkit.series.sample_writer import SampleWriter\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\nresource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))\n"
        "writer = SampleWriter(Path(sys.argv[1]), (SampleColumn(name='a'),), warn=print)\n"
        "for number in range(1000): writer.add(1e9 + number / 2, (1.0,))\n"
        "writer.keep(1e9, 2e9); writer.use((SampleColumn(name='b'),)); writer.add(2e9, (1.0,)); writer.close()\n"
    )

    done = subprocess.run([sys.executable, "-c", program, tmp_path], capture_output=True, text=True, timeout=60)

    assert (done.returncode, done.stderr) == (0, "")
    reason = os.strerror(errno.EFBIG)
    assert done.stdout == f"{tmp_path}: {reason}: no more samples are written there; the job goes on\n"
    assert len(read(tmp_path).series("a").x) > 40


def test_a_folder_that_cannot_be_made_is_one_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    messages: list[str] = []

    writer = SampleWriter(tmp_path / "file/samples", TWO, warn=messages.append)
    writer.add(START_S, (1.0, 2.0))
    writer.close()

    assert len(messages) == 1
    assert messages[0].startswith(f"{tmp_path}/file/samples: Not a directory: ")


def test_a_killed_monitor_loses_nothing_that_was_added(tmp_path: Path) -> None:
    program = (
        "import sys\nfrom pathlib import Path\nfrom toolkit.series.column import SampleColumn\n"
        "from toolkit.series.sample_writer import SampleWriter\n"
        "writer = SampleWriter(Path(sys.argv[1]), (SampleColumn(name='a'),))\n"
        "for number in range(505): writer.add(1.2e9 + number / 2, (float(number),))\n"
        "print('written', flush=True)\nsys.stdin.read()\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"written\n"
        live = read(tmp_path).series("a")
        process.send_signal(signal.SIGKILL)
        process.wait(60)

    after = read(tmp_path)

    assert live.x[-1] == after.series("a").x[-1] == 1.2e9 + 252
    assert after.series("a").high[-1] == 504
    assert after.span() == (1.2e9, 1.2e9 + 252)
    minutes = after.series("a", points=4)
    assert minutes.low[0] == 0
    assert minutes.high[-1] == 504


@pytest.mark.parametrize("lost", [1, 7, 30, 100, 500])
def test_files_that_were_cut_are_read_as_far_as_they_go(tmp_path: Path, lost: int) -> None:
    write(tmp_path, 200).close()
    for path in tmp_path.iterdir():
        os.truncate(path, max(path.stat().st_size - lost, 0))

    series = read(tmp_path).series(CPU)

    assert len(series.x) > 60
    assert np.all(np.diff(series.x) > 0)


def test_files_of_others_and_empty_ones_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "0001-00-000000.samples").write_bytes(b"")
    (tmp_path / "notes.samples").write_bytes(b"TKS1" + b"\xff" * 60)
    (tmp_path / "0009-01-000000.samples").write_bytes(b"\0" * 5000)
    write(tmp_path, 10).close()

    assert len(read(tmp_path).series(CPU).x) == 20


def test_a_reader_beside_the_writer_sees_each_sample_and_files_that_go_away(tmp_path: Path) -> None:
    writer = write(tmp_path, 70)
    early = read(tmp_path)
    for number in range(600):
        writer.add(START_S + 70 + number / 2, (1.0, 2.0))

    series, late = early.series(CPU), read(tmp_path).series(CPU)

    assert len(series.x) == 140  # Their file was deleted meanwhile: the times are known, the values are not.
    assert np.isnan(series.mean).any()
    assert late.x[-1] == START_S + 369.5


def test_many_columns_come_back_each_as_its_own(tmp_path: Path) -> None:
    columns = machine(30, 2)
    writer = SampleWriter(tmp_path, columns)
    for number in range(400):
        writer.add(START_S + number, [place + number % 3 for place in range(len(columns))])
    writer.close()

    samples = read(tmp_path)

    for place, column in enumerate(columns):
        assert set(samples.series(column.name).mean) == {place, place + 1, place + 2}


def test_a_made_day_reads_as_a_recorded_one(tmp_path: Path) -> None:
    record(tmp_path / "samples", hours=2, cores=4, gpus=1, seconds_kept_s=600)

    samples = read(tmp_path / "samples")
    series = samples.series("cpu/core3/used_percent")

    assert samples.span() == (START_S, START_S + 7199.5)
    assert sorted({float(step) for step in np.diff(series.x)}) == [0.5, 1, 10]
    assert np.all((series.low <= series.mean) & (series.mean <= series.high))


def test_a_missing_numpy_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "numpy", None)

    with pytest.raises(UserError, match=r"needs numpy.*pip install 'container-training-toolkit\[report\]'"):
        read(tmp_path)
    with pytest.raises(UserError, match="needs numpy"):
        arrays.numpy()


def test_writing_imports_no_numpy(tmp_path: Path) -> None:
    program = (
        "import sys\nfrom pathlib import Path\nfrom toolkit.series import findings, sample_writer, step_records\n"
        "from toolkit.series.column import SampleColumn\n"
        "w = sample_writer.SampleWriter(Path(sys.argv[1]), [SampleColumn(name='a')]); w.add(1.0, [2.0]); w.close()\n"
        "print('numpy' in sys.modules)"
    )

    done = subprocess.run([sys.executable, "-c", program, tmp_path], capture_output=True, text=True, timeout=60)

    assert (done.stdout, done.stderr) == ("False\n", "")
