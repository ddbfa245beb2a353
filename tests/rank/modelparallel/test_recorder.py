"""The recorded timeline of steps."""

from pathlib import Path

import msgspec

from toolkit.parallelism.timeline import FOLDER, PREFIX, RankStep
from toolkit.rank.modelparallel.recorder import Recorder, is_recorded


def test_the_second_to_fourth_step_and_every_thousandth_are_recorded() -> None:
    assert [step for step in range(2001) if is_recorded(step)] == [1, 2, 3, 1000, 2000]


def test_a_recorded_step_is_a_line_with_its_spans_in_order_of_time(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, rank=3, pp_rank=1, rdp_rank=1, pipeline="simple")
    for _ in range(5):
        recorder.begin()
        with recorder.span("forward", 0), recorder.span("recompute", 0):
            pass
        with recorder.span("backward", 0):
            pass
        recorder.end(path="chain", microbatches=1, parameter_bytes=40)

    lines = (tmp_path / FOLDER / f"{PREFIX}3.jsonl").read_bytes().splitlines()

    steps = [msgspec.json.decode(line, type=RankStep) for line in lines]
    assert [step.step for step in steps] == [1, 2, 3]
    for step in steps:
        assert (step.rank, step.pp_rank, step.rdp_rank, step.parameter_bytes) == (3, 1, 1, 40)
        assert [span.kind for span in step.spans] == ["forward", "recompute", "backward"]
        outer, inner, last = step.spans
        times = [step.begin_ns, outer.begin_ns, inner.begin_ns, inner.end_ns, outer.end_ns, last.begin_ns, step.end_ns]
        assert times == sorted(times)
