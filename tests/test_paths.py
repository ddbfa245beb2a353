import os
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit import paths
from toolkit.records import Record, decode, encode

NAMES = st.binary(min_size=1).filter(lambda name: b"\0" not in name)


class Place(Record, frozen=True, kw_only=True):
    folder: Path
    files: tuple[Path, ...] = ()


@given(NAMES)
def test_a_path_of_any_bytes_comes_back_from_a_document(name: bytes) -> None:
    path = os.fsdecode(name)
    document = msgspec.json.encode({paths.to_text(path): 1})

    (text,) = msgspec.json.decode(document)
    assert os.fsencode(paths.from_text(text)) == name
    assert decode(encode(Place(folder=Path(path))), Place, "place.json") == Place(folder=Path(path))


@given(st.text().filter(lambda text: "\0" not in text and paths.is_utf8(text)))
def test_the_text_of_other_paths_is_the_path_itself(path: str) -> None:
    assert paths.to_text(path) == paths.from_text(path) == paths.shown(path) == path


@pytest.mark.parametrize("text", ["a\0", "\0", "\0f", "\0FF", "\0+f", "\0zz", "\0002f", "a\0\0ff/b\0", "\0٩٩"])
def test_a_nul_that_stands_for_no_byte_stays(text: str) -> None:
    path = paths.from_text(text)

    assert "\0" in path
    with pytest.raises(ValueError, match="null byte"):
        Path(path).lstat()


def test_people_see_the_bytes() -> None:
    assert paths.shown(os.fsdecode(b"/base/model-\xff.pt")) == r"/base/model-\xff.pt"
    assert paths.shown(Path("/base/ü")) == "/base/ü"
