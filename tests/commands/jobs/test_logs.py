"""The end of a log is what a person would have seen last."""

from pathlib import Path

import pytest

from toolkit.commands.jobs.logs import TAIL_BYTES, tail
from toolkit.masking.text import mask


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"one\ntwo\nthree\n", ("two", "three")),
        (b"one\ntwo\nhalf", ("two", "half")),
        (b"", ()),
        (b"  1%\r 50%\r100%\ndone\n", ("100%", "done")),
        (b"\x1b[31mred\x1b[0m\n\x1b]0;title\x07plain\x00\n", ("red", "plain\ufffd")),
        ("\u202eturned\u2028\n\x9b31mC1\x85\n".encode(), ("\ufffdturned\ufffd", "\ufffd31mC1\ufffd")),
        (b"\xff\xfe\nlast\r\n", ("\ufffd\ufffd", "last")),
        (b"password=correcthorse9\n", ("password=******",)),
        (b"\x1b[36mpassword\x1b[0m=\x1b[35mcorrect\x1b[1mhorse9\x1b[0m\n", ("password=******",)),
    ],
)
def test_the_last_lines_are_decoded_plain_and_masked(tmp_path: Path, content: bytes, expected: tuple[str, ...]) -> None:
    log = tmp_path / "log"
    log.write_bytes(content)

    assert tail(log, 2, mask) == expected


def test_only_the_end_of_a_long_file_is_read_and_no_half_line_is_shown(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"".join(b"line %06d\n" % number for number in range(100_000)))

    lines = tail(log, 50_000, mask)

    assert lines[-1] == "line 099999"
    assert all(len(line) == len("line 000000") for line in lines)
    assert len(lines) >= TAIL_BYTES // 12 - 1


def test_a_very_long_line_is_cut_and_says_so(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"x" * 5000 + b"\n")

    assert tail(log, 1, mask) == ("x" * 2000 + "... (3000 more characters)",)


def test_a_line_of_megabytes_does_not_hide_the_lines_before_it(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"first\nsecond\n" + b"x" * 5_000_000 + b"\nlast\n")

    assert tail(log, 3, mask) == ("second", "x" * 2000 + "... (4998000 more characters)", "last")
