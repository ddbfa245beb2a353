"""The output of mpiruns, byte for byte, and the ranks whose lines it is (Open MPI 4.1.8 and 5.0.11, MPICH 5.0.2)."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.job.plan import TaggedBy, Tags
from toolkit.train.supervise.console import Console, Outlets
from toolkit.train.supervise.screen import Screen
from toolkit.train.supervise.tagged import TaggedStream
from toolkit.train.supervise.tags import RankHosts, SpokenText, TagSplitter

HERE = {"vm": "algo-1", "localhost": "algo-1"}
# Two ranks on each of two hosts; `\t` and blank lines as they came.
OPEN_MPI_4_MAP = b""" Data for JOB [27144,1] offset 0 Total slots allocated 4

 ========================   JOB MAP   ========================

 Data for node: vm\tNum slots: 2\tMax slots: 0\tNum procs: 2
 \tProcess OMPI jobid: [27144,1] App: 0 Process rank: 0 Bound: N/A
 \tProcess OMPI jobid: [27144,1] App: 0 Process rank: 1 Bound: N/A

 Data for node: algo-2\tNum slots: 2\tMax slots: 0\tNum procs: 2
 \tProcess OMPI jobid: [27144,1] App: 0 Process rank: 2 Bound: N/A
 \tProcess OMPI jobid: [27144,1] App: 0 Process rank: 3 Bound: N/A

 =============================================================
"""
OPEN_MPI_5_MAP = b"""
=================================   JOB MAP   =================================
Data for JOB prterun-vm-2041@1 offset 0 Total slots allocated 4
Mapper requested: NULL  Last mapper: round_robin  Mapping policy: BYSLOT:NOOVERSUBSCRIBE  Ranking policy: SLOT
Binding policy: NONE  Cpu set: N/A  PPR: N/A  Cpus-per-rank: N/A  Cpu Type: CORE
Num new daemons: 0\tNew daemon starting vpid INVALID
Num nodes: 2

Data for node: vm\tState: 3\tFlags: DAEMON_LAUNCHED:LOCATION_VERIFIED:MAPPED:SLOTS_GIVEN
                resolved from localhost
                resolved from 127.0.0.1
        Daemon: [prterun-vm-2041@0,0]\tDaemon launched: True
            Num slots: 2\tSlots in use: 2\tOversubscribed: FALSE
            Num slots allocated: 2\tMax slots: 0\tNum procs: 2
        Data for proc: [prterun-vm-2041@1,0]
                Pid: 0\tLocal rank: 0\tNode rank: 0\tApp rank: 0
                State: INITIALIZED\tApp_context: 0
        \tBinding: UNBOUND
        Data for proc: [prterun-vm-2041@1,1]
                Pid: 0\tLocal rank: 1\tNode rank: 1\tApp rank: 1
                State: INITIALIZED\tApp_context: 0
        \tBinding: UNBOUND

Data for node: algo-2\tState: 3\tFlags: DAEMON_LAUNCHED:LOCATION_VERIFIED:MAPPED:SLOTS_GIVEN
        Daemon: [prterun-vm-2041@0,1]\tDaemon launched: True
            Num slots: 2\tSlots in use: 2\tOversubscribed: FALSE
            Num slots allocated: 2\tMax slots: 0\tNum procs: 2
        Data for proc: [prterun-vm-2041@1,2]
                Pid: 0\tLocal rank: 0\tNode rank: 0\tApp rank: 2
                State: INITIALIZED\tApp_context: 0
        \tBinding: UNBOUND
        Data for proc: [prterun-vm-2041@1,3]
                Pid: 0\tLocal rank: 1\tNode rank: 1\tApp rank: 3
                State: INITIALIZED\tApp_context: 0
        \tBinding: UNBOUND

=============================================================
"""
# print() of a rank whose stdout has no buffer writes each word by itself.
OPEN_MPI_4 = b"""[1,0]<stdout>:sum 10 algo-1
[1,1]<stdout>:sum 10 algo-1
[1,3]<stdout>:sum[1,3]<stdout>: [1,3]<stdout>:10 [1,2]<stdout>:sum 10 algo-2
[1,3]<stdout>:algo-2
[1,0]<stdout>:bar 1\r[1,1]<stdout>:line 3
[1,1]<stdout>:1 half [1,0]<stdout>:bar 2\r[1,1]<stdout>:line 4
[1,1]<stdout>:bar 1\r[1,0]<stdout>:bar 3
[1,1]<stdout>:
[1,1]<stdout>:  \xe9
[1,0]<stdout>:end0[1,1]<stdout>:bar 2\r[1,1]<stdout>:bar 3
[1,1]<stdout>:end1"""
OPEN_MPI_5 = b"""[1,1]<stdout>: half line
[1,0]<stdout>: bar 1\rbar 2\rbar 3
[1,1]<stdout>:\x20
[1,1]<stdout>:   \xe9
[prterun-vm-2041@1,2]<stdout>: in full
[1,3]<stdout>: sum 10 algo-2
[1,0]<stdout>: end0[1,1]<stdout>: end1"""
MPICH = b"""[1,mpirank:0,localhost]:0 half [1,mpirank:1,localhost]:1 half [1,mpirank:0,localhost]:line 0
[1,mpirank:0,localhost]:bar 1\r[1,mpirank:1,localhost]:line 0
[1,mpirank:2,algo-2]:array[1] = [1, 2]
[1,mpirank:0,localhost]:bar 2
[1,mpirank:0,localhost]:end0[1,mpirank:1,localhost]:end1"""


def lines(spoken: list[SpokenText]) -> dict[object, bytes]:
    """Return each speaker's text."""
    by_speaker: dict[object, bytes] = {}
    for speaker, text in spoken:
        by_speaker[speaker] = by_speaker.get(speaker, b"") + text
    return by_speaker


def taken(by: TaggedBy, *blocks: bytes, hosts: Mapping[str, str] = HERE) -> list[SpokenText]:
    tagged = TagSplitter(by, RankHosts(hosts))
    return [piece for block in blocks for piece in tagged.feed(block)] + tagged.flush()


def test_open_mpi_4s_lines_are_whole_and_its_ranks_where_its_map_has_them() -> None:
    assert lines(taken("openmpi4", OPEN_MPI_4_MAP, OPEN_MPI_4)) == {
        None: OPEN_MPI_4_MAP,
        (0, "algo-1"): b"sum 10 algo-1\nbar 1\rbar 2\rbar 3\nend0",
        (1, "algo-1"): b"sum 10 algo-1\nline 3\n1 half line 4\nbar 1\r\n  \xe9\nbar 2\rbar 3\nend1",
        (2, "algo-2"): b"sum 10 algo-2\n",
        (3, "algo-2"): b"sum 10 algo-2\n",
    }


def test_open_mpi_5s_lines_are_whole_and_its_ranks_where_its_map_has_them() -> None:
    assert lines(taken("openmpi5", OPEN_MPI_5_MAP, OPEN_MPI_5)) == {
        None: OPEN_MPI_5_MAP,
        (0, "algo-1"): b"bar 1\rbar 2\rbar 3\nend0",
        (1, "algo-1"): b"half line\n\n  \xe9\nend1",
        (2, "algo-2"): b"in full\n",
        (3, "algo-2"): b"sum 10 algo-2\n",
    }


def test_hydras_lines_are_whole_and_its_ranks_where_it_says() -> None:
    assert lines(taken("mpich", MPICH)) == {
        (0, "algo-1"): b"0 half line 0\nbar 1\rbar 2\nend0",
        (1, "algo-1"): b"1 half line 0\nend1",
        (2, "algo-2"): b"array[1] = [1, 2]\n",
    }


def test_a_line_comes_out_when_it_is_complete_and_not_before() -> None:
    tagged = TagSplitter("openmpi4", RankHosts({}))

    assert tagged.feed(b"[1,1]<stdout>:half [1,0]<stdout>:whole\n") == [((0, ""), b"whole\n")]
    assert tagged.holds
    assert tagged.feed(b"[1,1]<stdout>:line\n") == [((1, ""), b"half line\n")]
    assert not tagged.holds


def test_the_states_of_a_bar_can_be_had_while_other_ranks_write() -> None:
    tagged = TagSplitter("openmpi4", RankHosts({}))
    tagged.feed(b"[1,1]<stdout>:10%\r[1,0]<stdout>:a line\n[1,1]<stdout>:20%\r[1,1]<stdout>:3")

    assert tagged.states() == [((1, ""), b"3")]
    assert tagged.flush() == [((1, ""), b"3")]


def test_mpiruns_own_lines_are_its_own_behind_a_ranks() -> None:
    text = b"[1,1]<stderr>:last words\n---\nmpirun noticed ...\n---\n[1,0]<stderr>:more\n"

    assert taken("openmpi4", text) == [
        ((1, ""), b"last words\n"),
        (None, b"---\nmpirun noticed ...\n---\n"),
        ((0, ""), b"more\n"),
    ]


def test_a_host_that_the_map_did_not_name_is_not_made_up() -> None:
    spoken = taken("openmpi4", b" Data for node: else\tNum slots: 1\n \tProcess rank: 0 Bound: N/A\n", OPEN_MPI_4)

    assert {speaker for speaker, _ in spoken} == {None, (0, "else"), (1, ""), (2, ""), (3, "")}


def test_one_streams_map_is_known_to_the_other() -> None:
    places = RankHosts(HERE)
    out, err = (TagSplitter("openmpi5", places) for _ in range(2))
    out.feed(OPEN_MPI_5_MAP)

    assert err.feed(b"[1,3]<stderr>: err\n") == [((3, "algo-2"), b"err\n")]


@given(st.sampled_from([("openmpi4", OPEN_MPI_4), ("openmpi5", OPEN_MPI_5), ("mpich", MPICH)]), st.data())
def test_where_a_block_ends_changes_nothing(recorded: tuple[TaggedBy, bytes], data: st.DataObject) -> None:
    """Lines of more than 1 MiB are cut anywhere, in a tag, too."""
    by, text = recorded
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    # Not between the parts of Open MPI 5's last byte: without its space a tag is one, too.
    cuts = [cut for cut in cuts if not (by == "openmpi5" and text[:cut].endswith(b">:"))]
    blocks = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]

    assert lines(taken(by, *blocks)) == lines(taken(by, text))


@pytest.mark.parametrize(
    ("more", "out", "err"),
    [
        ({"prefix_ranks": True, "tags": True}, b"[1,mpirank:3,algo-2]<stdout>:", b"[1,mpirank:3,algo-2]<stderr>:"),
        ({"prefix_ranks": True}, b"[algo-2 rank 3] ", b"[algo-2 rank 3] "),
        ({"prefix_ranks": False}, b"", b""),
    ],
)
def test_the_console_and_the_taps_have_them_as_from_the_ranks_own_pipes(
    tmp_path: Path, more: Any, out: bytes, err: bytes
) -> None:
    blocks: list[tuple[int | None, str, bytes]] = []
    pipes = [os.pipe() for _ in range(2)]
    files = [os.open(tmp_path / name, os.O_RDWR | os.O_CREAT) for name in ("out", "err")]
    console = Console(
        host="algo-1",
        make_monitor=lambda rank, host: lambda block: blocks.append((rank, host, block)),
        files=None,
        file_bytes=0,
        note=print,
        outlets=Outlets(files[0], files[1]),
        **more,
    )
    (stdout, stderr), _ = console.streams(
        "mpirun", None, stdout=pipes[0][0], stderr=pipes[1][0], shared=False, tags=Tags(by="openmpi4")
    )

    for (_, end), text, stream in (
        (pipes[0], OPEN_MPI_4_MAP + b"[1,3]<stdout>:wo[1,9]<stdout>:?\n[1,3]<stdout>:rd", stdout),
        (pipes[1], b"[1,3]<stderr>:error\n", stderr),
    ):
        os.write(end, text)
        os.close(end)
        stream.read(0.0)
        stream.read(0.0)

    unknown = out.replace(b"algo-2 ", b"").replace(b",algo-2", b"").replace(b"3", b"9")
    assert (tmp_path / "out").read_bytes() == OPEN_MPI_4_MAP + unknown + b"?\n" + out + b"word\n"
    assert (tmp_path / "err").read_bytes() == err + b"error\n"
    assert blocks == [(9, "", b"?\n"), (3, "algo-2", b"word"), (3, "algo-2", b"error\n")]
    for fd in files:
        os.close(fd)


def test_a_bars_states_come_to_the_console_while_another_rank_writes_line_after_line(tmp_path: Path) -> None:
    console_fd = os.open(tmp_path / "out", os.O_RDWR | os.O_CREAT)
    read_end, write_end = os.pipe()
    stream = TaggedStream(
        read_end, Screen(console_fd), TagSplitter("openmpi4", RankHosts({})), lambda who: (b"%a " % (who,), None)
    )

    for second in range(6):
        os.write(write_end, b"[1,1]<stdout>:%d%%\r[1,0]<stdout>:line %d\n" % (second, second))
        stream.read(float(second))
        if stream.due_in_s(float(second)) == 0.0:
            stream.refresh(float(second))

    assert (tmp_path / "out").read_bytes().split(b"\n") == [
        *(b"(0, '') line %d" % number for number in range(6)),
        b"(1, '') 5%",
        b"",
    ]
    os.close(write_end)
    stream.read(7.0)
    assert stream.ended
    os.close(console_fd)
