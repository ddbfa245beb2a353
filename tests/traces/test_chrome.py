"""A trace is read, or refused with what is wrong with it."""

import gzip
from pathlib import Path

import pytest

from tests.traces import made
from toolkit.errors import UserError
from toolkit.traces import chrome

WHOLE = made.document(made.gpu_step(), rank=3, base_ns=1_700_000_000_000_000_000)


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_a_trace_is_read(tmp_path: Path, pack: type[bytes]) -> None:
    path = tmp_path / "trace.json.gz"
    path.write_bytes(pack(WHOLE))

    trace = chrome.read(path)

    assert (trace.rank, trace.world_size, trace.host, trace.base_s) == (3, 2, "algo-1", 1_700_000_000.0)
    assert trace.devices == ("NVIDIA H100 80GB HBM3",)
    assert [event.name for event in trace.of("kernel")] == [made.GEMM, made.GEMM, made.ADD, made.REDUCE]
    assert trace.of("kernel")[0].args == chrome.Arguments(correlation=1007, stream=7, device=0)


@pytest.mark.parametrize(("name", "rank"), [("host_rank3.json", 3), ("rank-12.1.json.gz", 12), ("trace.json", None)])
def test_a_rank_that_the_trace_does_not_name_is_that_of_its_file(name: str, rank: int | None) -> None:
    assert chrome.decode(made.document([], rank=None), name).rank == rank


def test_a_list_of_events_alone_is_a_trace() -> None:
    content = b'[{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": "main", "ts": 1.5, "dur": 2}]'

    assert [event.end for event in chrome.decode(content, "trace.json").events] == [3.5]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "expected a Chrome trace, found an empty file. A process that is killed"),
        (WHOLE[:700], "expected a Chrome trace, found a mistake: Input data was truncated. A process that is killed"),
        (b"\x80PK", "expected a Chrome trace, found a mistake"),
        (b'{"events": []}', "found JSON of another shape: Object missing required field `traceEvents`"),
        (b'{"traceEvents": [{"ts": "late"}]}', "found JSON of another shape: Expected `float`, got `str`"),
        (gzip.compress(WHOLE)[:400], "the gzip data end too early: the file was cut off"),
        (b"\x1f\x8b\x08\x00nonsense" + bytes(20), "expected gzip, found a mistake"),
    ],
)
def test_a_broken_trace_says_what_is_wrong_with_it(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(content)

    with pytest.raises(UserError) as raised:
        chrome.read(path)

    assert str(raised.value).startswith(f"{path}: ")
    assert words in str(raised.value)


def test_a_trace_that_unpacks_to_gigabytes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chrome, "LARGEST_BYTES", 1000)
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(WHOLE))

    with pytest.raises(UserError, match="Trace fewer steps"):
        chrome.read(path)
