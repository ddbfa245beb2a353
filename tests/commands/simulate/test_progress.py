import pytest

from toolkit.commands.simulate.progress import HostProgress, JobProgress, Row, clock, rows, status_line
from toolkit.metrics.sample import Sample


def host(number: int, state: str = "running", error: str = "", bars: tuple[str, ...] = ()) -> HostProgress:
    """Return a host with its own value of the loss."""
    name = f"algo-{number}"
    samples = [Sample(name="loss", value=number / 2, time_s=number, host=name, step=40 + number)]
    return HostProgress(name=name, state=state, samples=tuple(samples), error=error, bars=bars)


def draw_lines(*hosts: HostProgress, width: int = 80, height: int = 24) -> list[str]:
    return [
        text(row) for row in rows(JobProgress(name="digits", elapsed_s=75, hosts=hosts), width=width, height=height)
    ]


def text(row: Row) -> str:
    return "".join(part for part, _ in row).rstrip()


@pytest.mark.parametrize(("seconds", "expected"), [(0, "0:00"), (59.9, "0:59"), (75, "1:15"), (3661, "1:01:01")])
def test_elapsed_time_reads_as_a_clock(seconds: float, expected: str) -> None:
    assert clock(seconds) == expected


def test_a_standing_fits_on_one_line_its_hosts_in_natural_order() -> None:
    progress = JobProgress(name="digits", elapsed_s=75, hosts=(host(10), host(2, "ended with 0")))

    assert status_line(progress) == "1:15 | algo-2 ended with 0, algo-10 running | loss=5"


def test_each_host_has_a_row_with_its_own_values_in_natural_order() -> None:
    assert draw_lines(host(10), host(2), host(1, "ended with 0")) == [
        "digits  1:15  3 hosts: 1 ended with 0, 2 running",
        "host     state         step  loss",
        "algo-1   ended with 0  41    0.5",
        "algo-2   running       42    1",
        "algo-10  running       50    5",
    ]


def test_an_error_stands_in_its_hosts_row_and_is_red() -> None:
    progress = JobProgress(name="digits", elapsed_s=1, hosts=(host(1), host(2, "ended with 1", "ValueError: boom")))

    row = rows(progress, width=80, height=24)[-1]

    assert text(row) == "algo-2  ended with 1  42    1     ValueError: boom"
    assert {style for part, style in row if "ended" in part or "boom" in part} == {"bold red"}


def test_forty_hosts_fold_and_those_that_failed_are_not_folded() -> None:
    hosts = [host(number) for number in range(1, 41)]
    hosts[36] = host(37, "vanished", "killed with everything on it")
    hosts[38] = host(39, "stopping")

    lines = draw_lines(*hosts)

    assert len(lines) == 12
    assert [line.split()[0] for line in lines[2:-1]] == [*(f"algo-{number}" for number in range(1, 9)), "algo-37"]
    assert lines[-1] == "... 31 more: 30 running, 1 stopping"


@pytest.mark.parametrize("height", [1, 3, 5, 10, 24, 50])
@pytest.mark.parametrize("width", [1, 12, 40, 80, 200])
@pytest.mark.parametrize("count", [1, 2, 12, 40])
def test_a_standing_never_exceeds_its_screen(count: int, width: int, height: int) -> None:
    hosts = [
        host(number, "ended with 137", "a long reason " * 20, (f"algo-{number} | " + "█" * 300,))
        for number in range(1, count + 1)
    ]

    lines = draw_lines(*hosts, width=width, height=height)

    assert 0 < len(lines) <= max(height - 1, 1)
    assert max(map(len, lines)) <= width


def test_bars_stand_below_the_hosts_as_many_as_fit() -> None:
    hosts = [host(1, bars=tuple(f"[algo-1 rank {rank}]  {rank}%" for rank in range(20)))]

    lines = draw_lines(*hosts)

    assert lines[3] == "[algo-1 rank 0]  0%"
    assert lines[-1] == "... 13 more progress bars"
    assert len(lines) == 11


def test_control_characters_of_a_script_never_reach_the_table() -> None:
    assert draw_lines(host(1, bars=("\x1b[2J\ttext",)))[-1] == "[2Jtext"


def test_speed_time_left_and_findings_stand_in_the_title_and_in_the_line() -> None:
    fast = HostProgress(name="algo-1", state="running", steps_per_s=9.0, left_s=10.0, findings=("DataWait",))
    slow = HostProgress(name="algo-2", state="running", steps_per_s=4.0, left_s=80.0, findings=("DataWait", "SlowRank"))
    progress = JobProgress(name="digits", elapsed_s=75, hosts=(fast, slow))
    said = "4 steps/s, about 1:20 left, found DataWait, SlowRank"

    assert status_line(progress) == f"1:15 | algo-1 running, algo-2 running | {said}"
    assert text(rows(progress, width=120, height=24)[0]) == f"digits  1:15  2 hosts: 2 running  {said}"


def test_a_time_limit_that_comes_before_the_end_is_said() -> None:
    slow = HostProgress(name="algo-1", state="running", steps_per_s=4.0, left_s=80.0)

    def line(limit_left_s: float | None) -> str:
        return status_line(JobProgress(name="digits", elapsed_s=75, hosts=(slow,), limit_left_s=limit_left_s))

    assert line(30.0) == "1:15 | algo-1 running | 4 steps/s, about 1:20 left to do, but max-run ends it in 0:30"
    assert line(90.0) == line(None) == "1:15 | algo-1 running | 4 steps/s, about 1:20 left"


def test_a_time_limit_is_said_where_nothing_else_says_when_the_job_ends() -> None:
    def line(state: str) -> str:
        hosts = (HostProgress(name="algo-1", state=state),)
        return status_line(JobProgress(name="digits", elapsed_s=75, hosts=hosts, limit_left_s=30.0))

    assert line("running") == "1:15 | algo-1 running | max-run ends it in 0:30 at the latest"
    assert line("stopping") == "1:15 | algo-1 stopping"
