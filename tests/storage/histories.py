"""Random histories of a checkpoint folder and its storage.

A script saves, rotates, renames and removes checkpoints in small steps. Between any two of them the uploader looks,
time passes, reads and requests fail, the script fails or is killed, the host vanishes (also during an upload), and the
next job begins on the same disk or on a new one. After every request that changes storage:

- storage can be restored, and holds nothing but contents that the folder had;
- the newest whole checkpoint in storage is never older than it was;
- what points to a checkpoint (`latest`) in storage keeps it there.

`python -m tests.storage.histories --seconds 600` runs new ones until the time is over.
"""

import argparse
import hashlib
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from tests.storage.memory import Memory, Vanished, refuse
from tests.storage.reading_faults import Faults
from toolkit.errors import PlatformError
from toolkit.storage import checkpoints, open_entries
from toolkit.storage import manifest as manifests
from toolkit.storage.checkpoints import Checkpoints
from toolkit.storage.open_entries import OpenEntries
from toolkit.storage.restore import restore
from toolkit.storage.scan import entry_of, scan
from toolkit.storage.uri import parse

ROOT = parse("s3://bucket/run")
STEPS = 60
# How long a script may pause between two files of a checkpoint that it writes in the place of another.
MID_SAVE_S = 40.0
FILES = ("model-1-of-2.bin", "model-2-of-2.bin", "optim\udcffizer.bin", "state.json")


def content(step: int, file: str) -> bytes:
    """Return the whole content of *file* of the checkpoint *step*."""
    return f"{step:06} {file!r} ".encode() * (3 if file == "state.json" else 400)


class History:
    """One history, which *seed* alone decides."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        self.folder = folder / "checkpoints"
        self.open_file = folder / "open.json"
        self.store = Memory()
        self.store.on_answer = lambda name: self._check()
        self.now_s = self.began_s = 1e9
        self.changed_s: dict[str, float] = {}  # By entry: the time here is not that of the file system.
        self.open: set[str] = set()
        self.had: set[tuple[str, str]] = {("", "")}  # Paths and digests of all contents that the folder ever had.
        self.newest = -1
        self.before: set[str] = set()  # The entries that storage had before its last change.
        self.step = 0
        self.layout = self.chance.choice(("folders", "files", "in place", "one file", "renamed"))
        self.order = self.chance.choice(("save first", "remove first"))
        self.kept = self.chance.choice((1, 1, 2, 3))
        self.read_faults = self.chance.choice((0.0, 0.0, 0.02, 0.2))
        self.request_faults = self.chance.choice((0.0, 0.0, 0.05, 0.3))
        self.log: list[str] = [f"{self.layout}, {self.order}, keeps {self.kept}"]

    # The script.

    def touch(self, name: str) -> None:
        self.changed_s[entry_of(name)] = self.now_s

    def write(self, name: str, data: bytes) -> Iterator[None]:
        """Write the file *name* in two halves, with it open between them, at times without."""
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        self.touch(name)
        keeps_open = self.chance.random() < 0.8
        half = data[: self.chance.randrange(len(data))]
        # A file that was whole in this place shows by its size that it is not, however long it is quiet and closed.
        is_less = self.layout == "one file" and len(half) * 2 < len(data)
        for part in (half, data):
            path.write_bytes(part)
            stamp_ns = int(self.now_s * 1e9)
            os.utime(path, ns=(stamp_ns, stamp_ns))
            self.touch(name)
            self.had.add((name, hashlib.sha256(part).hexdigest()))
            if part is half:
                if keeps_open or not is_less:
                    self.open.add(entry_of(name))
                yield
                if not keeps_open and not is_less:
                    self.now_s += 0.5  # It goes on at once: only an open file may be quiet and half.
        self.open.discard(entry_of(name))
        yield

    def remove(self, name: str) -> Iterator[None]:
        path = self.folder / name
        if path.is_dir() and not path.is_symlink():
            for below in self.chance.sample(sorted(path.iterdir()), len(list(path.iterdir()))):
                below.unlink()
                self.touch(name)
                if self.chance.random() < 0.3:
                    yield
            path.rmdir()
        else:
            path.unlink()
        self.touch(name)
        yield

    def save(self) -> Iterator[None]:
        """Save the next checkpoint and rotate the old ones."""
        self.step = max([self.step, *self._steps_on_disk()]) + 1
        if self.order == "remove first":
            yield from self.rotate(self.kept - 1)
        if self.layout == "files":
            yield from self.write(f"ckpt-{self.step}.pt", content(self.step, "ckpt"))
            self._link("last.ckpt", f"ckpt-{self.step}.pt")
        elif self.layout == "one file":
            yield from self.write("last.pt", content(self.step, "last.pt"))
        elif self.layout == "in place":
            if (self.folder / "last").is_dir():
                yield from self.remove("last")
            for file in FILES:
                yield from self.write(f"last/{file}", content(self.step, file))
        else:
            name = f"checkpoint-{self.step}"
            place = f"tmp-{name}" if self.layout == "renamed" else name
            for file in FILES:
                yield from self.write(f"{place}/{file}", content(self.step, file))
            if place != name:
                if (self.folder / name).is_dir():
                    yield from self.remove(name)
                (self.folder / place).rename(self.folder / name)
                self.had |= {(path.replace(place, name, 1), digest) for path, digest in self.had}
                self.touch(place)
                self.touch(name)
                yield
            yield from self.write("latest", name.encode())
        if self.order == "save first":
            yield from self.rotate(self.kept)

    def rotate(self, keep: int) -> Iterator[None]:
        if self.layout not in ("in place", "one file"):
            names = sorted(self._checkpoints(), key=_step_of)
            for name in names[: max(len(names) - keep, 0)]:
                yield from self.remove(name)

    def remove_all(self) -> Iterator[None]:
        for path in sorted(self.folder.iterdir()):
            if not path.name.startswith(".toolkit"):
                yield from self.remove(path.name)

    def script(self) -> Iterator[None]:
        if self.chance.random() < 0.05:
            yield from self.remove_all()
        while True:
            yield from self.save()
            self.now_s += self.chance.choice((0.0, 1.0, 10.0, 100.0))
            if self.chance.random() < 0.03:
                yield from self.remove_all()
            yield

    def _link(self, name: str, target: str) -> None:
        new = self.folder / f"{name}.new"
        new.unlink(missing_ok=True)
        new.symlink_to(target)
        new.replace(self.folder / name)
        self.touch(name)
        self.touch(new.name)

    def _checkpoints(self) -> list[str]:
        return [path.name for path in self.folder.iterdir() if _step_of(path.name) >= 0 and not path.is_symlink()]

    def _steps_on_disk(self) -> list[int]:
        return [_step_of(name.removeprefix("tmp-")) for name in self._checkpoints()]

    # The platform.

    def play(self) -> None:
        """Play the history.

        Raises:
            AssertionError: a promise is broken.
        """
        while len(self.log) < STEPS:
            self.job()
        self.quiet_end()

    def job(self) -> None:
        """One job: restore, run, end."""
        self.log.append("job")
        if not self.folder.exists():
            self.changed_s.clear()
        restore(self.store, ROOT, 0, self.folder, lambda size: None)  # type: ignore[arg-type]
        self.touch_all()
        self.open_file.unlink(missing_ok=True)
        self.now_s += 20
        self.began_s = self.now_s
        script, uploader, end = self.script(), None, ""
        while not end:
            action = self.chance.choices(("script", "look", "wait", "end"), (12, 6, 3, 1))[0]
            self.log.append(action)
            if action == "script":
                next(script)
                self.now_s += self.chance.choice((0.0, 0.1, 2.0))
            elif action == "wait":
                longest_s = 70.0
                if self.layout == "in place":
                    longest_s = max(self.changed_s.get("last", 0.0) + MID_SAVE_S - self.now_s, 0.0)
                self.now_s += min(self.chance.choice((1.0, 6.0, 70.0)), longest_s)
            elif action == "look":
                uploader = self.upload(uploader, "look")
            else:
                end = self.chance.choice(("fails", "vanishes", "vanishes and loses its disk", "ends"))
            if not self.folder.exists():
                end = "vanishes and loses its disk"
        self.log.append(end)
        with self._time():
            OpenEntries(self.folder, self.open_file).update()  # It looks every 2 s, whether storage works or not.
        self.open.clear()
        if end in ("fails", "ends"):
            if end == "ends":
                for _ in self.save():
                    pass
            clean, ended_s = end == "ends", self.now_s
            self.now_s += self.chance.choice((0.0, 3.0))
            self.upload(None, "finish", clean=clean, ended_s=ended_s)
        if end.endswith("disk") or self.chance.random() < 0.2:
            shutil.rmtree(self.folder, ignore_errors=True)

    def touch_all(self) -> None:
        for path in self.folder.iterdir():
            self.changed_s.setdefault(path.name, self.now_s)

    def upload(self, uploader: Checkpoints | None, task: str, **how: Any) -> Checkpoints | None:
        """Let the uploader work, while requests and reads may fail; return it, None if it has to be made anew."""
        faults = Faults(self.chance, self.read_faults)
        vanishes_at = self.chance.randrange(1, 8) if self.chance.random() < 0.05 else 0
        requests = 0

        def request(name: str) -> None:
            nonlocal requests
            requests += 1
            if requests == vanishes_at:
                raise Vanished
            if self.chance.random() < self.request_faults:
                refuse(name)

        def answer(name: str) -> None:
            self._check()
            if self.chance.random() < self.request_faults / 2:
                refuse(name)  # It is done, and the answer is lost.

        self.store.on_request, self.store.on_answer = request, answer
        try:
            with self._time(), faults.inject(f"{self.folder}") if self.read_faults else nullcontext():
                uploader = uploader or self._uploader()
                if task == "look":
                    uploader.upload_settled(self.now_s)
                else:
                    uploader.finish(**how)
            return uploader
        except PlatformError:
            return None
        except Vanished:
            shutil.rmtree(self.folder)
            return None
        finally:
            self.store.on_request, self.store.on_answer = lambda name: None, lambda name: self._check()

    def _uploader(self) -> Checkpoints:
        return Checkpoints(
            self.store,  # type: ignore[arg-type]
            ROOT,
            self.folder,
            rank=0,
            host="algo-1",
            open_file=self.open_file,
            note=lambda size: None,
            began_s=self.began_s,
            steady_s=lambda: self.now_s,
        )

    @contextmanager
    def _time(self) -> Iterator[None]:
        """Let entries have changed when this history says, and be written as it says."""

        def scanned(folder: Path) -> Any:
            scanned = scan(folder)
            for name, entry in scanned.entries.items():
                scanned.entries[name] = type(entry)(files=entry.files, changed_s=self.changed_s.get(name, self.now_s))
            return scanned

        fakes: dict[str, Any] = {
            "scan": scanned,
            # Threads would end in another order each time.
            "run_ordered": lambda pieces: (piece() for piece in pieces),
        }
        real = {name: getattr(checkpoints, name) for name in fakes}
        for name, fake in fakes.items():
            setattr(checkpoints, name, fake)
        real_written = vars(open_entries)["entries_being_written"]
        vars(open_entries)["entries_being_written"] = lambda folder: frozenset(self.open)
        try:
            yield
        finally:
            vars(open_entries)["entries_being_written"] = real_written
            for name, function in real.items():
                setattr(checkpoints, name, function)

    def quiet_end(self) -> None:
        """The last script saves once more and ends; nothing fails. Then storage has what the folder has."""
        self.read_faults = self.request_faults = 0.0
        if not self.folder.exists():
            restore(self.store, ROOT, 0, self.folder, lambda size: None)  # type: ignore[arg-type]
        self.now_s += 100
        for _ in self.save():
            pass
        self.now_s += 100
        while (uploader := self.upload(None, "finish", clean=True, ended_s=self.now_s)) is None:
            self.folder.mkdir(exist_ok=True)
            for _ in self.save():
                pass
        assert uploader.left_out() == {}, self._told()
        stored = {entry_of(path) for path in self._stored()}
        in_folder = set(scan(self.folder).entries)
        assert stored == in_folder, f"{stored} in storage, {in_folder} in the folder: {self._told()}"

    # What must hold.

    def _stored(self) -> dict[str, bytes | str]:
        """Return what storage holds by path: the content of files, the targets of links."""
        manifest = manifests.read(_Plain(self.store), ROOT, 0)  # type: ignore[arg-type]
        stored: dict[str, bytes | str] = {}
        for path, file in manifest.files.items() if manifest else ():
            data = b"".join(self.store.objects[f"run/hosts/0/parts/{part}"] for part in file.parts)
            assert len(data) == file.size_bytes, f"{path!r}: {len(data)} of {file.size_bytes} bytes: {self._told()}"
            stored[path] = file.link or data
        return stored

    def _check(self) -> None:
        stored = self._stored()
        for path, data in stored.items():
            if isinstance(data, bytes):
                digest = hashlib.sha256(data).hexdigest()
                assert (path, digest) in self.had, f"{path!r} never had {data[:40]!r}: {self._told()}"
        newest = max(_whole_steps(stored), default=-1)
        assert newest >= self.newest, f"{newest} is the newest in storage, it was {self.newest}: {self._told()}"
        self.newest = newest
        for pointer in ("latest", "last.ckpt"):
            target = stored.get(pointer, b"")
            name = target if isinstance(target, str) else target.decode()
            is_whole_name = _step_of(name) >= 0 and name in (
                f"checkpoint-{_step_of(name)}",
                f"ckpt-{_step_of(name)}.pt",
            )
            entries = {entry_of(path) for path in stored}
            is_dangling = name not in entries and name in self.before
            assert not is_whole_name or not is_dangling, (
                f"{pointer} points to {name}, storage has {entries}: {self._told()}"
            )
        self.before = {entry_of(path) for path in stored}

    def _told(self) -> str:
        return f"seed {self.seed}: {'; '.join(self.log)}"


class _Plain:
    """The storage without faults."""

    def __init__(self, store: Memory) -> None:
        self._plain = Memory()
        self._plain.objects = store.objects

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plain, name)


def _step_of(name: str) -> int:
    digits = "".join(letter for letter in name if letter.isdigit())
    return int(digits) if digits and not name.startswith(".") else -1


def _whole_steps(stored: dict[str, bytes | str]) -> set[int]:
    """Return the steps of which *stored* has a whole checkpoint."""
    steps = set()
    for name in {entry_of(path) for path in stored}:
        if name.startswith("ckpt-") and stored[name] == content(_step_of(name), "ckpt"):
            steps.add(_step_of(name))
        first = stored.get(f"{name}/{FILES[0]}", b"").split(b" ")[0]  # type: ignore[arg-type]
        digits = stored.get("last.pt", b"")[:6]
        if name == "last.pt" and digits.isdigit() and stored[name] == content(int(digits), name):
            steps.add(int(digits))
        if first.isdigit() and all(stored.get(f"{name}/{file}") == content(int(first), file) for file in FILES):
            steps.add(int(first))
    return steps


def play(seconds: float, first_seed: int) -> int:
    """Play histories from *first_seed* on until *seconds* are over; return how many."""
    ends_s = time.monotonic() + seconds
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        seed = first_seed
        while time.monotonic() < ends_s:
            place = Path(folder, str(seed))
            place.mkdir()
            History(seed, place).play()
            shutil.rmtree(place)
            seed += 1
    return seed - first_seed


def main() -> int:
    """Play new histories, and say how many."""
    parser = argparse.ArgumentParser(prog="python -m tests.storage.histories")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32), help="the first seed")
    words = parser.parse_args()
    print(f"histories: seeds from {words.seed} on", flush=True)
    print(f"histories: {play(words.seconds, words.seed):,} in {words.seconds:g} s: nothing found")
    return 0


if __name__ == "__main__":
    sys.exit(main())
