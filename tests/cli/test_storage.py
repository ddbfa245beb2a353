"""`toolkit storage` as a person types it, on a folder and on a server of S3."""

import io
import json
import os
import signal
import time
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile

import pytest

from tests.storage.memory import Memory
from tests.storage.servers import S3
from toolkit.cli.main import main
from toolkit.commands.storage import changes
from toolkit.commands.storage import stored as found
from toolkit.storage.checkpoints import Checkpoints, OvertakenError
from toolkit.storage.config import CheckpointLayout
from toolkit.storage.restore import restore
from toolkit.storage.store import StorageClient
from toolkit.storage.uri import parse

pytest.importorskip("obstore")


@dataclass(frozen=True)
class Done:
    """The output of a command."""

    stdout: str
    stderr: str


def storage(folder: Path, *words: str, status: int = 0) -> Done:
    """Do the command in this process, in *folder*; check its exit status."""
    before, handlers = Path.cwd(), {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    out, stderr_fd = io.StringIO(), os.dup(2)
    with TemporaryFile("w+") as err:
        os.chdir(folder)
        os.dup2(err.fileno(), 2)  # Where the toolkit's log goes.
        try:
            with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
                main(["storage", *words])
        finally:
            os.dup2(stderr_fd, 2)
            os.close(stderr_fd)
            os.chdir(before)
            for number, handler in handlers.items():
                signal.signal(number, handler)
        err.seek(0)
        done = Done(stdout=out.getvalue(), stderr=err.read())
    assert (ended.value.code or 0) == status, done.stderr
    return done


def stored(uri: str, folder: Path, rank: int = 0, layout: CheckpointLayout = "parts") -> None:
    """Store the checkpoint folder *folder* as the host *rank* of a job does."""
    place = parse(uri)
    client = StorageClient(place, os.environ, timeout_s=20.0)
    open_file = folder.parent / "open.json"
    uploader = Checkpoints(
        client, place, folder, rank=rank, host=f"algo-{rank}", open_file=open_file, note=lambda _: None, layout=layout
    )
    assert uploader.finish(clean=True, ended_s=0.0)


def saved(folder: Path, *steps: int, name: str = "model") -> Path:
    for step in steps:
        path = folder / f"checkpoint-{step}" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(f"{name} of step {step}".encode() * 100)
        os.utime(path, (1e9 + step,) * 2)
    return folder


def content(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def names(folder: Path, uri: str) -> list[str]:
    return [line.split()[-1] for line in storage(folder, "ls", uri).stdout.splitlines()[1:]]


def there_and_back(tmp_path: Path, uri: str, layout: CheckpointLayout) -> None:
    """Store checkpoints of two hosts at *uri*; list, fetch and remove them."""
    first, second = saved(tmp_path / "first", 5, 40), saved(tmp_path / "second", 5, name="shard-1")
    stored(uri, first, layout=layout)
    stored(uri, second, rank=1, layout=layout)

    rows = [line.split() for line in storage(tmp_path, "ls", uri).stdout.splitlines()]
    assert rows[0] == ["step", "written", "bytes", "files", "hosts", "name"]
    assert [(row[0], row[3], row[4], row[5], row[6]) for row in rows[1:]] == [
        ("5", "3,200", "2", "0,1", "checkpoint-5/"),
        ("40", "1,600", "1", "0", "checkpoint-40/"),
    ]
    assert names(tmp_path, f"{uri}/checkpoint-5") == ["model", "shard-1"]
    found = json.loads(storage(tmp_path, "ls", "--json", f"{uri}/checkpoint-5").stdout)
    assert [(entry["name"], entry["hosts"], entry["mtime_s"]) for entry in found] == [
        ("model", [0], 1e9 + 5),
        ("shard-1", [1], 1e9 + 5),
    ]

    storage(tmp_path, "get", uri, "all")
    storage(tmp_path, "get", f"{uri}/checkpoint-5", "one")
    storage(tmp_path, "get", f"{uri}/checkpoint-5/shard-1")
    both = content(first) | content(second)
    assert content(tmp_path / "all") == both
    assert content(tmp_path / "one") == {path: value for path, value in both.items() if "checkpoint-5/" in path}
    assert (tmp_path / "shard-1").read_bytes() == both["checkpoint-5/shard-1"]
    assert "fetched 0 of 3 files" in storage(tmp_path, "get", uri, "all").stderr

    asked = storage(tmp_path, "rm", f"{uri}/checkpoint-5", status=78)
    assert "would remove 2 files, 3,200 bytes. Add --yes to remove it." in asked.stderr
    assert len(names(tmp_path, uri)) == 2
    storage(tmp_path, "rm", f"{uri}/checkpoint-5", "--yes")
    assert names(tmp_path, uri) == ["checkpoint-40/"]
    storage(tmp_path, "get", uri, "rest")
    assert content(tmp_path / "rest") == {path: value for path, value in both.items() if "checkpoint-40/" in path}
    storage(tmp_path, "rm", uri, "--yes")
    assert "expected objects, found none" in storage(tmp_path, "ls", uri, status=78).stderr


def test_checkpoints_of_two_hosts_in_a_folder_there_and_back(tmp_path: Path) -> None:
    there_and_back(tmp_path, f"file://{tmp_path}/kept/run", "parts")
    assert content(tmp_path / "kept") == {}


@pytest.mark.storage
def test_checkpoints_of_two_hosts_in_s3_there_and_back(s3: S3, bucket: str, tmp_path: Path) -> None:
    there_and_back(tmp_path, f"{bucket}/run", "plain")
    assert s3.keys(bucket) == []


def test_what_is_put_is_what_a_get_brings(tmp_path: Path) -> None:
    folder, uri = saved(tmp_path / "mine", 5, 6), f"file://{tmp_path}/kept"
    storage(tmp_path, "put", "mine", uri)
    storage(tmp_path, "put", "mine/checkpoint-5/model", f"{uri}/single")

    assert names(tmp_path, uri) == ["single/", "checkpoint-5/", "checkpoint-6/"]
    storage(tmp_path, "rm", f"{uri}/checkpoint-5/model", "--yes")
    storage(tmp_path, "get", f"{uri}/checkpoint-6", "back")
    assert content(tmp_path / "back") == {
        path: value for path, value in content(folder).items() if "checkpoint-6" in path
    }
    assert content(tmp_path / "kept").keys() == {"single/model", "checkpoint-6/model"}


def test_nothing_is_put_beside_the_checkpoints_of_a_job(tmp_path: Path) -> None:
    uri = f"file://{tmp_path}/kept"
    stored(uri, saved(tmp_path / "mine", 5))

    assert (
        "found hosts/, beside which other files are ignored" in storage(tmp_path, "put", "mine", uri, status=78).stderr
    )


def test_what_links_lead_to_is_put_and_what_is_no_file_is_named(tmp_path: Path) -> None:
    folder, uri = saved(tmp_path / "mine", 5), f"file://{tmp_path}/kept"
    (folder / "checkpoint-5/link").symlink_to("model")
    (folder / "latest").symlink_to("checkpoint-5")

    assert "left out latest: neither a file" in storage(tmp_path, "put", "mine", uri).stderr

    storage(tmp_path, "get", f"{uri}/checkpoint-5", "back")
    assert content(tmp_path / "back") == content(folder)


def test_nothing_is_removed_behind_a_link(tmp_path: Path) -> None:
    folder, elsewhere = saved(tmp_path / "kept", 5), saved(tmp_path / "elsewhere", 9)
    (folder / "latest").symlink_to("checkpoint-5")
    (folder / "data").symlink_to("../elsewhere")
    before = content(folder), content(elsewhere)

    for place, link in (("kept", "data"), ("kept/latest", "latest"), ("kept/data", "data")):
        message = storage(tmp_path, "rm", f"file://{tmp_path}/{place}", "--yes", status=78).stderr
        assert f"found the link {tmp_path}/kept/{link}" in message
    assert (content(folder), content(elsewhere)) == before


def test_the_inside_of_a_jobs_storage_is_neither_removed_nor_added_to(tmp_path: Path) -> None:
    uri = f"file://{tmp_path}/kept"
    stored(uri, saved(tmp_path / "mine", 5), layout="plain")
    before = content(tmp_path / "kept")

    for inside in ("hosts", "hosts/0", "hosts/0/files/checkpoint-5"):
        assert f"{uri}/CHECKPOINT" in storage(tmp_path, "rm", f"{uri}/{inside}", "--yes", status=78).stderr
        storage(tmp_path, "put", "mine", f"{uri}/{inside}", status=78)
    assert content(tmp_path / "kept") == before


@pytest.mark.parametrize("path", ["checkpoint-5", ""])
def test_a_job_that_stores_while_its_checkpoint_is_removed_loses_nothing_else(path: str, tmp_path: Path) -> None:
    store, root, folder = Memory(), parse("s3://bucket/run"), saved(tmp_path / "mine", 5, 6)

    def uploader() -> Checkpoints:
        open_file = tmp_path / "open.json"
        return Checkpoints(store, root, folder, rank=0, host="a", open_file=open_file, note=lambda _: None)  # type: ignore[arg-type]

    job = uploader()
    job.finish(clean=True, ended_s=0.0)
    saved(folder, 7)

    def store_meanwhile(name: str) -> None:
        if name != "delete":
            return
        store.on_answer = lambda name: None
        with pytest.raises(OvertakenError):
            job.finish(clean=True, ended_s=0.0)
        uploader().finish(clean=True, ended_s=0.0)  # As a job goes on.

    here = root.below(path) if path else root
    named = found.find(store, here)  # type: ignore[arg-type]
    store.on_answer = store_meanwhile
    changes.remove(store, named, now_s=time.time())  # type: ignore[arg-type]

    restore(store, root, 0, tmp_path / "back", lambda _: None)  # type: ignore[arg-type]
    assert "checkpoint-7/model" in content(tmp_path / "back")
    uploader().finish(clean=True, ended_s=0.0)
    restore(store, root, 0, tmp_path / "all", lambda _: None)  # type: ignore[arg-type]
    assert content(tmp_path / "all") == content(folder)


def test_what_a_job_stored_after_the_look_stays_when_a_checkpoint_is_removed(tmp_path: Path) -> None:
    uri, folder = f"file://{tmp_path}/kept", saved(tmp_path / "mine", 5)
    stored(uri, folder)
    client = StorageClient(parse(uri), os.environ, timeout_s=20.0)
    named = found.find(client, parse(f"{uri}/checkpoint-5"))
    stored(uri, saved(folder, 6))

    changes.remove(client, named, now_s=time.time())

    assert names(tmp_path, uri) == ["checkpoint-6/"]


@pytest.mark.parametrize(
    ("words", "status", "reason"),
    [
        (("ls", "s3:/bucket"), 78, "URI: expected s3://BUCKET/KEY"),
        (("ls", "file:///no/such/place"), 78, "expected objects, found none"),
        (("get", "file:///no/such/place", "x"), 78, "expected objects, found none"),
        (("rm", "s3://bucket", "--yes"), 78, "expected a key in the bucket, found the bucket as a whole"),
        (("put", "none", "file:///tmp/x"), 78, "none: expected a file, or a folder with files, found none"),
        (("list", "s3://bucket"), 78, "list"),
        ((), 78, "ACTION"),
        (("ls",), 78, "URI"),
    ],
)
def test_what_is_wrong_is_named(words: tuple[str, ...], status: int, reason: str, tmp_path: Path) -> None:
    assert reason in storage(tmp_path, *words, status=status).stderr


def test_storage_that_cannot_be_reached_ends_with_75(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "AWS_ACCESS_KEY_ID": "k",
        "AWS_SECRET_ACCESS_KEY": "s",
        "TOOLKIT_STORAGE_TIMEOUT_S": "1",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")

    assert "cannot be read, tried for up to 1 s" in storage(tmp_path, "ls", "s3://bucket/run", status=75).stderr


@pytest.mark.parametrize(
    ("uri", "names"), [("s3://b/x", "AWS_ACCESS_KEY_ID"), ("az://b/x", "AZURE_STORAGE_ACCOUNT_NAME")]
)
def test_a_machine_without_credentials_is_told_which_there_are(
    uri: str, names: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith(("AWS_", "AZURE_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("TOOLKIT_STORAGE_TIMEOUT_S", "1")
    monkeypatch.setenv("HOME", str(tmp_path))

    message = storage(tmp_path, "ls", uri, status=75).stderr

    assert "no credentials: " in message
    assert f"Check the credentials ({names}" in message
