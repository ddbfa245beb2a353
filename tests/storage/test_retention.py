"""The version of each entry that storage holds next, as a table; tests/storage/histories.py plays histories."""

import pytest

from toolkit.storage.manifest import Manifest, StoredFile
from toolkit.storage.retention import End, decide, is_lesser
from toolkit.storage.scan import FileState, FolderEntry, FolderScan, entry_of

MIB = 1 << 20
CHECKPOINT = ("model.bin", "optimizer.bin", "state.json")


def checkpoint(
    name: str, *, files: tuple[str, ...] = CHECKPOINT, mtime: int = 1, since: int = 1
) -> dict[str, StoredFile]:
    sizes = {"state.json": 100}
    return {
        f"{name}/{file}": StoredFile(size_bytes=sizes.get(file, MIB), mtime_ns=mtime, parts=("p",), since=since)
        for file in files
    }


def file(
    name: str, size_bytes: int = MIB, *, mtime: int = 1, since: int = 1, points_to: str = ""
) -> dict[str, StoredFile]:
    targets = (points_to,) if points_to else ()
    return {name: StoredFile(size_bytes=size_bytes, mtime_ns=mtime, parts=("p",), since=since, points_to=targets)}


def folder(*groups: dict[str, StoredFile], unreadable: str = "", fault: str = "") -> FolderScan:
    entries: dict[str, FolderEntry] = {}
    for path, stored_file in {path: file for group in groups for path, file in group.items()}.items():
        stored = FileState(
            size_bytes=stored_file.size_bytes,
            mtime_ns=stored_file.mtime_ns,
            mode=stored_file.mode,
            link=stored_file.link,
        )
        entry = entries.setdefault(entry_of(path), FolderEntry(files={}, changed_s=0.0))
        entry.files[path] = stored
    return FolderScan(entries=entries, unreadable={unreadable: "EIO"} if unreadable else {}, fault=fault)


def stored(*groups: dict[str, StoredFile]) -> Manifest:
    files = {path: file for group in groups for path, file in group.items()}
    return Manifest(host="h", written_s=0.0, number=1, files=files)


OLD = checkpoint("checkpoint-500")
NEW = checkpoint("checkpoint-1000", mtime=2)
HALF = checkpoint("checkpoint-1000", mtime=2, files=("model.bin", "optimizer.bin"))
POINTER = file("latest", 14, points_to="checkpoint-500")
TO_NEW = {"latest": ("checkpoint-1000",)}

# what storage has, what the folder has, what is unsettled, what storage has then ("+" with the folder's version)
ROTATIONS = {
    "the new one is whole": (stored(OLD), folder(NEW), "", "+checkpoint-1000"),
    "the new one is being written": (stored(OLD), folder(NEW), "checkpoint-1000", "checkpoint-500"),
    "the new one has not begun": (stored(OLD), folder(), "", "checkpoint-500"),
    "the new one pauses half written": (stored(OLD), folder(HALF), "", "+checkpoint-1000 checkpoint-500"),
    "the new one cannot be read": (stored(OLD), folder(NEW, unreadable="checkpoint-1000"), "", "checkpoint-500"),
    "the folder cannot be listed": (stored(OLD), folder(fault="EIO"), "", "checkpoint-500"),
    "the folder is listed half": (stored(OLD), folder(NEW, fault="EIO"), "", "+checkpoint-1000 checkpoint-500"),
    "another shape, once": (
        stored(OLD),
        folder(file("a.pt", mtime=2)),
        "",
        "+a.pt checkpoint-500",
    ),
    "another shape, twice": (
        stored(OLD),
        folder(*(checkpoint(f"checkpoint-{step}", mtime=2, files=("model.safetensors",)) for step in (1000, 1500))),
        "",
        "+checkpoint-1000 +checkpoint-1500",
    ),
    "two pause half written, one after the other": (
        stored(OLD, checkpoint("checkpoint-1000", mtime=2, since=2, files=("model.bin", "optimizer.bin"))),
        folder(checkpoint("checkpoint-1500", mtime=3, files=("model.bin",))),
        "",
        "+checkpoint-1500 checkpoint-1000 checkpoint-500",
    ),
    "the mark of the whole comes last": (
        stored(checkpoint("step-1", files=("__0_0.distcp", ".metadata"))),
        folder(checkpoint("step-2", mtime=2, files=("__0_0.distcp",))),
        "",
        "+step-2 step-1",
    ),
    "the new one has not got its name yet": (
        stored(checkpoint("1")),
        folder(checkpoint("2.orbax-checkpoint-tmp-17", mtime=2)),
        "",
        "+2.orbax-checkpoint-tmp-17 1",
    ),
    "a file is only begun": (stored(file("last.pt")), folder(file("last.pt", 0, mtime=2)), "", "last.pt"),
    "in place, less than half": (stored(file("last.pt")), folder(file("last.pt", MIB // 3, mtime=2)), "", "last.pt"),
    "in place, more than half": (stored(file("last.pt")), folder(file("last.pt", MIB - 9, mtime=2)), "", "+last.pt"),
    "in place, a file of a folder is less than half": (
        stored(OLD),
        folder(OLD | file("checkpoint-500/model.bin", 9, mtime=2) | file("checkpoint-500/optimizer.bin", 9, mtime=2)),
        "",
        "checkpoint-500",
    ),
    "in place, less than half, and a successor is whole": (
        stored(file("last.pt")),
        folder(file("last.pt", 9, mtime=2), file("epoch-2.pt", mtime=3)),
        "",
        "+epoch-2.pt +last.pt",
    ),
    "a pointer becomes short": (
        stored(OLD, file("newest", 40)),
        folder(OLD, file("newest", 4, mtime=2)),
        "",
        "+checkpoint-500 +newest",
    ),
    "a log grows": (
        stored(OLD, file("train.log", since=0)),
        folder(file("train.log", 9 * MIB, mtime=2)),
        "",
        "+train.log checkpoint-500",
    ),
    "all are removed": (stored(OLD, checkpoint("checkpoint-400", since=0)), folder(), "", "checkpoint-500"),
    "an older one stays": (
        stored(checkpoint("checkpoint-400", since=0), OLD),
        folder(checkpoint("checkpoint-400", since=0)),
        "",
        "+checkpoint-400 checkpoint-500",
    ),
    "renamed": (
        stored(checkpoint("tmp-checkpoint-500")),
        folder(checkpoint("checkpoint-500")),
        "",
        "+checkpoint-500",
    ),
    "half removed": (stored(OLD), folder(checkpoint("checkpoint-500", files=("model.bin",))), "", "checkpoint-500"),
    "half removed, and a new one is whole": (
        stored(OLD),
        folder(checkpoint("checkpoint-500", files=("model.bin",)), NEW),
        "",
        "+checkpoint-1000 +checkpoint-500",
    ),
    "in place, half written anew": (
        stored(OLD),
        folder(checkpoint("checkpoint-500", mtime=2, files=("state.json",))),
        "",
        "checkpoint-500",
    ),
    "a shard of many is removed": (
        stored(checkpoint("c", files=("m-1-of-2", "m-2-of-2"))),
        folder(checkpoint("c", files=("m-1-of-2",))),
        "",
        "c",
    ),
    "files of one number go together": (
        stored(file("ckpt-5.index"), file("ckpt-5.data-0-of-1")),
        folder(file("ckpt-10.data-0-of-1", mtime=2)),
        "",
        "+ckpt-10.data-0-of-1 ckpt-5.data-0-of-1 ckpt-5.index",
    ),
    "an empty mark": (stored(OLD, file("running", 0)), folder(OLD), "", "+checkpoint-500"),
    "a lock, and nothing newer": (stored(OLD, file("a.lock", 5)), folder(OLD), "", "+checkpoint-500 a.lock"),
    "a lock, and a newer one": (
        stored(OLD, file("a.lock", 5)),
        folder(OLD, NEW),
        "",
        "+checkpoint-1000 +checkpoint-500",
    ),
    "the pointer is held back": (
        stored(OLD, POINTER),
        folder(NEW, file("latest", 15, mtime=2)),
        "latest",
        "+checkpoint-1000 checkpoint-500 latest",
    ),
    "the pointer is ahead": (
        stored(OLD, POINTER),
        folder(OLD, NEW, file("latest", 15, mtime=2)),
        "checkpoint-1000",
        "+checkpoint-500 latest",
    ),
    "the pointer follows": (
        stored(OLD, POINTER),
        folder(NEW, file("latest", 15, mtime=2)),
        "",
        "+checkpoint-1000 +latest",
    ),
}


def after(manifest: Manifest, scan: FolderScan, unsettled: str, end: End = "open", *, began_s: float = 0.0) -> str:
    decision = decide(manifest, scan, set(unsettled.split()), pointers=TO_NEW, end=end, began_s=began_s)
    assert not decision.taken & decision.retained
    return " ".join(sorted({f"+{name}" for name in decision.taken} | decision.retained))


@pytest.mark.parametrize("name", ROTATIONS)
def test_a_removal_counts_once_something_newer_is_whole_in_storage(name: str) -> None:
    manifest, scan, unsettled, expected = ROTATIONS[name]

    assert after(manifest, scan, unsettled) == expected


@pytest.mark.parametrize("end", ["broken", "clean"])
def test_a_script_that_has_ended_removes_nothing_while_anything_is_held_back(end: End) -> None:
    manifest, scan = stored(OLD, file("notes.txt")), folder(NEW, file("notes.txt", mtime=2))

    assert after(manifest, scan, "notes.txt", end) == "+checkpoint-1000 checkpoint-500 notes.txt"
    assert after(manifest, scan, "", end) == "+checkpoint-1000 +notes.txt"


def test_a_script_that_ends_by_itself_has_the_last_word_on_what_it_wrote_anew() -> None:
    scan = folder(checkpoint("checkpoint-500", mtime=2, files=("state.json",)))

    assert after(stored(OLD), scan, "", "clean") == "+checkpoint-500"
    assert after(stored(OLD), folder(), "", "clean") == "checkpoint-500"


@pytest.mark.parametrize(
    ("was", "in_folder"),
    [
        (file("last.pt"), file("last.pt", MIB - 9, mtime=2)),
        (OLD, checkpoint("checkpoint-500", mtime=2, files=("model.bin", "optimizer.bin"))),
        (OLD, OLD | file("checkpoint-500/optimizer.bin", MIB - 9, mtime=2)),
        (OLD, OLD | file("checkpoint-500/optimizer.bin", mtime=2)),
        (OLD, checkpoint("checkpoint-500", mtime=2, files=("model.bin", "optimizer.bin")) | file("checkpoint-500/b")),
    ],
)
@pytest.mark.parametrize("end", ["open", "broken"])
def test_what_an_earlier_run_left_less_whole_in_its_place_waits_until_the_script_writes_it_or_ends_by_itself(
    was: dict[str, StoredFile], in_folder: dict[str, StoredFile], end: End
) -> None:
    (name,) = {entry_of(path) for path in was}

    assert after(stored(was), folder(in_folder), "", end, began_s=1.0) == name
    assert after(stored(was), folder(in_folder), "", end, began_s=0.0) == f"+{name}"
    assert after(stored(was), folder(in_folder), "", "clean", began_s=1.0) == f"+{name}"


@pytest.mark.parametrize("in_folder", [file("last.pt", 2 * MIB, mtime=2), checkpoint("last.pt", mtime=2)])
def test_what_an_earlier_run_left_as_whole_in_its_place_is_stored(in_folder: dict[str, StoredFile]) -> None:
    was = checkpoint("last.pt") if len(in_folder) > 1 else file("last.pt")

    assert after(stored(was), folder(in_folder), "", began_s=1.0) == "+last.pt"
    assert (
        after(stored(was), folder(was | file("last.pt/more") if len(in_folder) > 1 else in_folder), "", began_s=1.0)
        == "+last.pt"
    )


@pytest.mark.parametrize(
    ("files", "lesser"),
    [
        (CHECKPOINT, False),
        (("model.bin", "optimizer.bin"), True),
        ((*CHECKPOINT, "more"), False),
        ((), True),
    ],
)
def test_a_version_that_lacks_files_is_lesser(files: tuple[str, ...], lesser: bool) -> None:
    earlier = checkpoint("c") | checkpoint("c", files=(".model.bin.x7k2", "writing.lock"))
    (entry,) = folder(checkpoint("c", files=(*files, "x"))).entries.values()

    assert is_lesser(entry, earlier) is lesser


def test_a_checkpoint_is_newer_if_it_came_later_and_its_time_is_no_earlier() -> None:
    def left(new: dict[str, StoredFile], was_stored: bool) -> str:
        has_both = stored(checkpoint("checkpoint-500", mtime=100, since=2), new)
        return after(has_both if was_stored else stored(checkpoint("checkpoint-500", mtime=100)), folder(new), "")

    for since, mtime, is_newer in ((3, 100, True), (2, 101, True), (2, 100, False), (3, 99, False), (1, 101, False)):
        expected = "+checkpoint-1000" if is_newer else "+checkpoint-1000 checkpoint-500"
        assert left(checkpoint("checkpoint-1000", mtime=mtime, since=since), was_stored=True) == expected
    assert left(checkpoint("checkpoint-1000", mtime=100), was_stored=False) == "+checkpoint-1000"
