"""Objects that become files, and a later fetch into the same folder."""

import os
from pathlib import Path

import pytest

from toolkit.storage.download import fetch
from toolkit.storage.store import StorageClient
from toolkit.storage.uri import parse


class Bed:
    """A folder `kept` that is storage, and a folder `data` that objects are fetched into."""

    def __init__(self, folder: Path) -> None:
        self.kept, self.data = folder / "kept", folder / "data"
        self.kept.mkdir()

    def put(self, name: str, content: bytes, time_s: int) -> None:
        (self.kept / name).parent.mkdir(exist_ok=True)
        (self.kept / name).write_bytes(content)
        os.utime(self.kept / name, (time_s, time_s))

    def fetched(self) -> int:
        """Fetch, and return how many bytes came."""
        came: list[int] = []
        uri = parse(f"file://{self.kept}")
        fetch(StorageClient(uri, {}, timeout_s=10.0), uri, self.data, came.append)
        return sum(came)

    def there(self) -> dict[str, bytes]:
        return {str(path.relative_to(self.data)): path.read_bytes() for path in self.data.rglob("*") if path.is_file()}


@pytest.fixture
def bed(tmp_path: Path) -> Bed:
    pytest.importorskip("obstore")
    return Bed(tmp_path)


def test_an_object_of_the_same_size_that_was_written_anew_is_fetched_again(bed: Bed) -> None:
    bed.put("labels", b"0101", 1_000_000_000)
    bed.put("images", b"images", 1_000_000_000)
    assert bed.fetched() == 10
    assert bed.fetched() == 0
    bed.put("labels", b"1111", 1_000_000_060)

    assert bed.fetched() == 4
    assert bed.there() == {"labels": b"1111", "images": b"images"}


def test_what_storage_no_longer_has_is_removed_and_what_a_script_made_stays(bed: Bed) -> None:
    for name in ("good", "deep/bad", "bad"):
        bed.put(name, b"shard", 1_000_000_000)
    bed.fetched()
    (bed.data / "cache").write_bytes(b"made by the script")
    for name in ("deep/bad", "bad"):
        (bed.kept / name).unlink()

    bed.fetched()

    assert bed.there() == {"good": b"shard", "cache": b"made by the script"}
    assert not (bed.data / "deep").exists()  # As in a fresh folder: an empty one may count as a class without images.


def test_an_object_comes_in_the_place_of_a_folder_of_others(bed: Bed) -> None:
    bed.put("classes/cat", b"cat", 1_000_000_000)
    bed.fetched()
    (bed.kept / "classes/cat").unlink()
    (bed.kept / "classes").rmdir()
    bed.put("classes", b"cat, dog", 1_000_000_060)

    bed.fetched()

    assert bed.there() == {"classes": b"cat, dog"}


def test_names_of_any_length_come_and_none_is_taken_for_the_part_of_another(bed: Bed) -> None:
    names = ["n" * 250, "n" * 255, "a", ".a.part", ".a.part.tag"]
    for name in names:
        bed.put(name, name.encode(), 1_000_000_000)

    bed.fetched()

    assert bed.there() == {name: name.encode() for name in names}
