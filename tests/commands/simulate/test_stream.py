from toolkit.commands.simulate.stream import HostStream


def test_a_bar_of_one_rank_is_known_before_its_line_ends() -> None:
    stream = HostStream(2)

    assert stream.feed(b"\r 10%\r 20%") == ()
    assert (stream.states, stream.moved) == ({b"": b" 20%"}, True)
    assert stream.feed(b"\r100%\nnext\n") == (b" 20%\r100%\nnext\n",)
    assert stream.states == {}


def test_bars_of_several_ranks_are_told_apart() -> None:
    stream = HostStream(2)

    stream.feed(b"[algo-1 rank 0]  1%\r[algo-1 rank 1]  2%\r[algo-1 rank 0]  3%\r")
    assert stream.states == {b"[algo-1 rank 0] ": b"[algo-1 rank 0]  3%", b"[algo-1 rank 1] ": b"[algo-1 rank 1]  2%"}
    (block,) = stream.feed(b"[algo-1 rank 1] a line\n")
    assert stream.lines(block) == b"[algo-1 rank 1] a line\n"
    assert list(stream.states) == [b"[algo-1 rank 0] "]


def test_a_bar_at_position_one_is_a_state_and_no_line() -> None:
    stream = HostStream(2)

    blocks = stream.feed(b"\r outer\n\r inner 1%|#\x1b[A\n\r inner 2%|#\x1b[A\n")

    assert b"".join(map(stream.lines, blocks)) == b" outer\n"
    assert stream.states == {b"": b" inner 2%|#"}


def test_a_prompt_is_shown_and_memory_is_bounded() -> None:
    stream = HostStream(1)
    stream.feed(b"Downloading... ")
    assert stream.states == {b"": b"Downloading... "}

    for number in range(100_000):
        stream.feed(b"\r%d of 100000" % number)
    assert stream.states == {b"": b"99999 of 100000"}
    assert stream.flush() == b"99999 of 100000"
