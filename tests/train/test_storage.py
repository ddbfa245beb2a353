"""A source, checkpoints and output/intermediate in storage, as `train` uses them."""

import os
import shutil
import signal
import sys
import tarfile
import time
from pathlib import Path

import pytest

from tests.storage.servers import S3, Faulty
from tests.train.base import TRAIN, Base
from tests.train.live import live

pytestmark = pytest.mark.storage
NOWHERE = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", "AWS_ENDPOINT_URL": "http://127.0.0.1:9"}


def checkpoints(bucket: str) -> dict[str, str]:
    return {"TOOLKIT_CHECKPOINT_URI": f"{bucket}/checkpoints"}


def keys(s3: S3, uri: str, part: str) -> list[str]:
    return [key for key in s3.keys(uri) if part in key]


SAVES = """
import os, pathlib, sys, time
folder = pathlib.Path(os.environ["SM_MODEL_DIR"]).parent / "checkpoints"
before = sorted(path.name for path in folder.iterdir())
print("found", before, flush=True)
(folder / f"step-{len(before)}").write_text("whole")
"""


def test_a_source_in_s3_is_fetched_and_run(base: Base, s3: S3, bucket: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('from storage')\n")
    with tarfile.open(tmp_path / "sourcedir.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "train.py", "train.py")
    s3.store(bucket).upload("code/sourcedir.tar.gz", tmp_path / "sourcedir.tar.gz")
    uri = f"{bucket}/code/sourcedir.tar.gz"
    base.hyperparameters({"sagemaker_submit_directory": f'"{uri}"'})

    done = base.train(s3.environ)

    assert (done.status, done.stdout) == (0, b"from storage\n"), done
    assert f"[toolkit] fetched {uri} in " in done.log
    assert (base.code / "train.py").exists()


@pytest.mark.parametrize("key", ["none/sourcedir.tar.gz", ""])
def test_a_source_that_is_not_there_ends_the_job_with_78(base: Base, s3: S3, bucket: str, key: str) -> None:
    uri = f"{bucket}/{key}"
    base.hyperparameters({"sagemaker_submit_directory": f'"{uri}"'})

    done = base.train(s3.environ)

    assert done.status == 78, done
    assert done.failure is not None
    assert done.failure.startswith("ClientError:\nExitCode 78\n")
    assert "expected objects, found none. Correct the URI." in done.failure


def test_a_source_that_cannot_be_fetched_ends_the_job_with_75(base: Base, s3: S3) -> None:
    base.hyperparameters({"sagemaker_submit_directory": '"s3://bucket/sourcedir.tar.gz"'})

    done = base.train({**NOWHERE, "TOOLKIT_STORAGE_TIMEOUT_S": "1"})

    assert done.status == 75, done
    assert done.failure is not None
    assert done.failure.startswith("PlatformError:\nExitCode 75\n")
    assert "s3://bucket/sourcedir.tar.gz: cannot be read, tried for up to 1 s: " in done.failure


def test_checkpoints_go_on_in_the_next_job(base: Base, s3: S3, bucket: str, tmp_path: Path) -> None:
    base.program(SAVES)
    environ = {**s3.environ, **checkpoints(bucket)}

    first = base.train(environ)
    other = Base(tmp_path / "other")
    other.program(SAVES)
    second = other.train(environ)

    assert (first.status, first.stdout) == (0, b"found []\n"), first
    assert (second.status, second.stdout) == (0, b"found ['step-0']\n"), second
    assert (other.root / "checkpoints/step-0").read_text() == "whole"
    assert "restored " in second.log
    assert second.outcome["notes"] == []


def test_checkpoints_are_uploaded_while_the_script_runs(base: Base, s3: S3, bucket: str) -> None:
    base.program(SAVES + "print('saved', flush=True)\ntime.sleep(120)\n")

    with live(base, **{**s3.environ, **checkpoints(bucket)}) as train:
        train.until(b"saved")
        ends_s = time.monotonic() + 60
        while not keys(s3, bucket, "manifest.json"):
            assert time.monotonic() < ends_s, train.err
            time.sleep(0.2)
        train.signal(signal.SIGKILL)

    other = Base(base.folder / "other")
    other.program(SAVES)
    assert other.train({**s3.environ, **checkpoints(bucket)}).stdout == b"found ['step-0']\n"


def test_a_checkpoint_that_is_saved_on_a_stop_is_uploaded_within_the_platforms_time(
    base: Base, s3: S3, bucket: str, tmp_path: Path
) -> None:
    base.program(
        "import os, pathlib, signal, sys, time\n"
        "folder = pathlib.Path(os.environ['SM_MODEL_DIR']).parent / 'checkpoints'\n"
        "def save(*_):\n    (folder / 'last').write_text('saved on the stop')\n    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, save)\nprint('ready', flush=True)\ntime.sleep(120)\n"
    )

    with live(base, **{**s3.environ, **checkpoints(bucket)}) as train:
        train.until(b"ready")
        train.signal()
        done = train.end()

    assert done.outcome["status"] == "stopped", done
    assert keys(s3, bucket, "manifest.json")


def test_the_next_job_restores_what_the_plain_layout_has_stored_as_ordinary_objects(
    base: Base, s3: S3, bucket: str, tmp_path: Path
) -> None:
    base.program(SAVES)
    environ = {**s3.environ, **checkpoints(bucket), "TOOLKIT_CHECKPOINT_LAYOUT": "plain"}

    first = base.train(environ)
    other = Base(tmp_path / "other")
    other.program(SAVES)
    second = other.train(environ)

    assert (first.status, first.stdout) == (0, b"found []\n"), first
    assert (second.status, second.stdout) == (0, b"found ['step-0']\n"), second
    assert [key.rpartition("hosts/0/")[2] for key in keys(s3, bucket, "files/")] == ["files/step-0", "files/step-1"]


def test_a_job_restores_a_prefix_of_ordinary_objects(base: Base, s3: S3, bucket: str, tmp_path: Path) -> None:
    base.program(SAVES)
    (tmp_path / "model").write_bytes(b"weights")
    s3.store(bucket).upload("checkpoints/checkpoint-7/model", tmp_path / "model")

    done = base.train({**s3.environ, **checkpoints(bucket)})

    assert (done.status, done.stdout) == (0, b"found ['checkpoint-7']\n"), done


def test_storage_that_cannot_be_reached_ends_the_job_with_75_before_the_script(base: Base, s3: S3) -> None:
    base.program("print('ran')\n")

    done = base.train({**NOWHERE, "TOOLKIT_CHECKPOINT_URI": "s3://bucket/x", "TOOLKIT_STORAGE_TIMEOUT_S": "1"})

    assert (done.status, done.stdout) == (75, b""), done
    assert done.failure is not None
    assert "s3://bucket/x/hosts: cannot be listed, tried for up to 1 s: " in done.failure


@pytest.mark.parametrize("uri", ["s3:/bucket/x", "/mnt/checkpoints", "s3://no-such-bucket-here/x"])
def test_a_wrong_uri_ends_the_job_with_78_before_the_script(base: Base, s3: S3, uri: str) -> None:
    base.program("print('ran')\n")

    done = base.train({**s3.environ, "TOOLKIT_CHECKPOINT_URI": uri})

    assert (done.status, done.stdout) == (78, b""), done
    assert done.failure is not None
    assert uri in done.failure


def test_an_upload_that_fails_does_not_change_how_the_job_ends(base: Base, faulty: Faulty, bucket: str) -> None:
    base.program(SAVES)
    faulty.fault = lambda method, path: "500" if method == "PUT" else ""

    done = base.train({**faulty.environ, **checkpoints(bucket), "TOOLKIT_STORAGE_TIMEOUT_S": "2"})

    assert (done.status, done.succeeded) == (0, True), done
    (note,) = done.outcome["notes"]
    assert note.startswith(f"the last upload failed: {bucket}/checkpoints: ")
    assert f"[toolkit] warning: {note}" in done.log


def test_a_checkpoint_that_a_failing_script_wrote_last_does_not_replace_a_whole_one(
    base: Base, s3: S3, bucket: str
) -> None:
    base.program(SAVES + "sys.exit(3)\n")

    done = base.train({**s3.environ, **checkpoints(bucket)})

    assert done.status == 3, done
    assert "step-0 may be half written" in done.outcome["notes"][0]
    assert not keys(s3, bucket, "manifest.json")


# Keeps one checkpoint, as transformers' save_total_limit=1 does: the old one goes when the new one is saved.
ROTATES = """
import os, pathlib, shutil, sys, time
folder = pathlib.Path(os.environ["SM_MODEL_DIR"]).parent / "checkpoints"
before = sorted(path.name for path in folder.iterdir())
print("found", before, (folder / before[0] / "model").read_text() if before else "", flush=True)

def save(step):
    new = folder / f"checkpoint-{step}"
    new.mkdir()
    for name in ("model", "optimizer", "state"):
        (new / name).write_text(f"{step} {name}")
"""


def test_a_script_that_rotates_its_one_checkpoint_and_fails_leaves_the_last_whole_one_in_storage(
    base: Base, tmp_path: Path
) -> None:
    stored = tmp_path / "stored"
    manifest = stored / "hosts/0/manifest.json"
    base.program(
        f"{ROTATES}save(500)\n"
        f"while not os.path.exists({str(manifest)!r}):\n    time.sleep(0.1)\n"
        "save(1000)\nshutil.rmtree(folder / 'checkpoint-500')\nsys.exit(3)\n"
    )
    environ = {"TOOLKIT_CHECKPOINT_URI": f"file://{stored}"}

    failed = base.train(environ)
    other = Base(tmp_path / "other")
    other.program(ROTATES)
    resumed = other.train(environ)

    assert failed.status == 3, failed
    assert "checkpoint-1000 may be half written" in failed.outcome["notes"][0]
    assert (resumed.status, resumed.stdout) == (0, b"found ['checkpoint-500'] 500 model\n"), resumed


def test_a_checkpoint_that_cannot_be_read_keeps_its_version_in_storage_and_costs_no_other(
    base: Base, tmp_path: Path
) -> None:
    if shutil.which("setpriv") is None:
        pytest.skip("needs setpriv, to run as one who may not read everything")
    stored = tmp_path / "stored"
    manifest = stored / "hosts/0/manifest.json"
    base.program(
        f"{ROTATES}save(500)\nsave(600)\n"
        f"while not os.path.exists({str(manifest)!r}):\n    time.sleep(0.1)\n"
        "(folder / 'checkpoint-500' / 'model').write_text('changed')\n"
        "(folder / 'checkpoint-500' / 'model').chmod(0)\n(folder / 'checkpoint-600').chmod(0)\nsave(700)\n"
    )
    environ = {"TOOLKIT_CHECKPOINT_URI": f"file://{stored}"}
    unprivileged = ("setpriv", "--bounding-set=-dac_override,-dac_read_search")

    done = base.train(environ, command=(*unprivileged, *TRAIN))
    (base.root / "checkpoints/checkpoint-600").chmod(0o700)
    other = Base(tmp_path / "other")
    other.program(ROTATES)
    resumed = other.train(environ)

    assert (done.status, done.succeeded) == (0, True), done
    (note,) = done.outcome["notes"]
    assert "checkpoint-500, checkpoint-600 cannot be read (" in note
    assert "Permission denied); storage keeps what it had of it" in note
    assert f"[toolkit] warning: {note}" in done.log
    assert resumed.stdout.startswith(b"found ['checkpoint-500', 'checkpoint-600', 'checkpoint-700'] 500 model"), resumed


def test_storage_inside_the_checkpoint_folder_is_refused(base: Base, tmp_path: Path) -> None:
    base.program("print('ran')\n")
    (base.root / "checkpoints").mkdir(exist_ok=True)
    (tmp_path / "link").symlink_to(base.root)

    for place in (base.root / "checkpoints", base.root / "checkpoints/stored", tmp_path / "link/checkpoints/x"):
        done = base.train({"TOOLKIT_CHECKPOINT_URI": f"file://{place}"})

        assert (done.status, done.stdout) == (78, b""), done
        assert done.failure is not None
        assert f"TOOLKIT_CHECKPOINT_URI=file://{place}: expected a place outside the checkpoint folder" in done.failure


def test_checkpoints_and_base_folders_of_any_bytes_go_to_storage_and_back(tmp_path: Path) -> None:
    stored = tmp_path / "stored"
    program = (
        "import os, pathlib\n"
        "folder = pathlib.Path(os.environ['SM_MODEL_DIR']).parent / 'checkpoints'\n"
        "print(sorted(os.listdir(os.fsencode(folder))))\n"
        "with open(os.fsencode(folder) + b'/model-\\xff', 'w') as file:\n    file.write('whole')\n"
    )
    printed = []
    for name in (b"base-\xfe", b"base-\xfd"):
        base = Base(tmp_path / os.fsdecode(name))
        base.program(program)
        done = base.train({"TOOLKIT_CHECKPOINT_URI": f"file://{stored}"})
        assert done.status == 0, done
        printed.append(done.stdout)

    assert printed == [b"[]\n", b"[b'model-\\xff']\n"]


def test_sigterm_during_the_restore_stops_the_job_at_once(base: Base, faulty: Faulty, bucket: str) -> None:
    base.program(SAVES)
    environ = {**faulty.environ, **checkpoints(bucket)}
    assert base.train(environ).status == 0
    other = Base(base.folder / "other")
    other.program("print('ran')\n")
    faulty.fault = lambda method, path: "hang" if method == "GET" and "/parts/" in path else ""

    with live(other, **environ) as train:
        ends_s = time.monotonic() + 60
        while not faulty.count("GET", "/parts/"):
            assert time.monotonic() < ends_s, train.err
            time.sleep(0.1)
        train.signal()
        done = train.end(deadline_s=15)

    assert (done.status, done.stdout) == (143, b""), done
    assert done.outcome["status"] == "stopped"


def test_a_stalled_last_upload_ends_with_the_platforms_time(base: Base, faulty: Faulty, bucket: str) -> None:
    base.program(
        "import os, pathlib, signal, sys, time\n"
        "folder = pathlib.Path(os.environ['SM_MODEL_DIR']).parent / 'checkpoints'\n"
        "def save(*_):\n    (folder / 'last').write_text('saved on the stop')\n    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, save)\nprint('ready', flush=True)\ntime.sleep(120)\n"
    )
    faulty.fault = lambda method, path: "hang" if method == "PUT" else ""

    with live(base, **{**faulty.environ, **checkpoints(bucket), "TOOLKIT_STOP_WITHIN_S": "6"}) as train:
        train.until(b"ready")
        train.signal()
        done = train.end(deadline_s=20)

    assert done.outcome["status"] == "stopped", done
    assert "the 6 s from the stop to SIGKILL are over" in done.outcome["notes"][0]


def test_output_intermediate_is_uploaded_while_the_script_runs_and_at_its_end(base: Base, s3: S3, bucket: str) -> None:
    base.hyperparameters({"sagemaker_s3_output": f'"{bucket}/out"'})
    base.program(
        "import os, pathlib, sys\n"
        "folder = pathlib.Path(os.environ['SM_OUTPUT_INTERMEDIATE_DIR'])\n"
        "(folder / 'a b').mkdir(parents=True)\n(folder / 'a b/ü').write_text('first')\n"
        "print('written', flush=True)\nsys.stdin.close(); __import__('time').sleep(8)\n"
        "(folder / 'last').write_text('last')\n"
    )

    with live(base, **s3.environ) as train:
        train.until(b"written")
        ends_s = time.monotonic() + 60
        while not s3.keys(bucket):
            assert time.monotonic() < ends_s, train.err
            time.sleep(0.1)
        early = s3.keys(bucket)
        done = train.end()

    assert done.status == 0, done
    assert early == ["out/walk/output/intermediate/a b/ü"]
    assert s3.keys(bucket) == [*early, "out/walk/output/intermediate/last"]
    assert "not supported" not in done.log


def test_two_hosts_keep_their_own_checkpoints(s3: S3, bucket: str, tmp_path: Path) -> None:
    hosts = ("algo-1", "algo-2")
    program = (
        "import os, pathlib\n"
        "folder = pathlib.Path(os.environ['SM_MODEL_DIR']).parent / 'checkpoints'\n"
        "print(sorted(path.name for path in folder.iterdir()))\n"
        "(folder / ('of-' + os.environ['SM_CURRENT_HOST'])).write_text('x')\n"
    )
    addresses = {"TOOLKIT_HOST_ADDRESSES": "algo-1=127.0.0.1,algo-2=127.0.0.1"}
    printed = []
    for number, host in enumerate((*hosts, *hosts)):
        base = Base(tmp_path / str(number))
        base.resources(hosts, host)
        base.program(program)
        printed.append(base.train({**s3.environ, **checkpoints(bucket), "TOOLKIT_LINK": "off", **addresses}).stdout)

    assert printed[0] == b"[]\n"
    assert printed[2:] == [b"['of-algo-1', 'of-algo-2']\n"] * 2


def test_check_says_that_it_does_not_look_into_a_source_in_storage(base: Base) -> None:
    base.hyperparameters({"sagemaker_submit_directory": '"s3://bucket/sourcedir.tar.gz"'})

    done = base.train(command=(sys.executable, "-m", "toolkit", "check"))

    assert done.status == 0, done
    assert "s3://bucket/sourcedir.tar.gz is in storage" in done.log


READS = (
    "import os, pathlib\n"
    "folder = pathlib.Path(os.environ['SM_CHANNEL_TRAIN'])\n"
    "print({str(path.relative_to(folder)): path.read_text() for path in sorted(folder.rglob('*')) if path.is_file()})\n"
)


def with_channel(base: Base, uri: str) -> dict[str, str]:
    variables = {"TOOLKIT_PROGRAM": "train.py", "TOOLKIT_CHANNELS": f"train={uri}"}
    return {"TOOLKIT_PLATFORM": "plain", "TOOLKIT_BASE": str(base.root), **variables}


def put(s3: S3, bucket: str, folder: Path, key: str, text: str) -> None:
    (folder / "object").write_text(text)
    s3.store(bucket).upload(key, folder / "object")


def test_a_channel_in_storage_is_fetched_before_the_script(base: Base, s3: S3, bucket: str, tmp_path: Path) -> None:
    """A second run in the container fetches what is new; from another URI it fetches all anew."""
    base.program(READS)
    put(s3, bucket, tmp_path, "one/a.txt", "1")
    put(s3, bucket, tmp_path, "one/deep/b.txt", "22")
    put(s3, bucket, tmp_path, "two/c.txt", "333")
    environ = {**s3.environ, **with_channel(base, f"{bucket}/one")}

    first = base.train(environ)
    put(s3, bucket, tmp_path, "one/d.txt", "4444")
    again = base.train(environ)
    other = base.train({**environ, "TOOLKIT_CHANNELS": f"train={bucket}/two/c.txt"})

    assert (first.status, first.stdout) == (0, b"{'a.txt': '1', 'deep/b.txt': '22'}\n"), first
    assert f"[toolkit] channel train: fetching {bucket}/one\n" in first.log
    assert f"[toolkit] channel train: fetched {bucket}/one, 3 bytes in " in first.log
    assert again.stdout == b"{'a.txt': '1', 'd.txt': '4444', 'deep/b.txt': '22'}\n", again
    assert f"fetched {bucket}/one, 4 bytes in " in again.log
    assert other.stdout == b"{'c.txt': '333'}\n", other


def test_a_mounted_folder_wins_over_the_uri_of_its_channel(base: Base) -> None:
    base.program(READS)
    folder = base.root / "input/data/train"
    folder.mkdir(parents=True)
    (folder / "mounted.txt").write_text("here")

    done = base.train({**NOWHERE, **with_channel(base, "s3://bucket/data")})

    assert (done.status, done.stdout) == (0, b"{'mounted.txt': 'here'}\n"), done
    assert (folder / "mounted.txt").exists()


def test_a_channel_that_cannot_be_fetched_is_named(base: Base, s3: S3, bucket: str) -> None:
    base.program("print('ran')\n")

    nothing = base.train({**s3.environ, **with_channel(base, f"{bucket}/none")})
    of_nothing = nothing.failure
    unreachable = base.train({**NOWHERE, **with_channel(base, "s3://b/data"), "TOOLKIT_STORAGE_TIMEOUT_S": "1"})

    assert (nothing.status, unreachable.status, nothing.stdout) == (78, 75, b""), (nothing, unreachable)
    assert f'ErrorMessage "channel train: {bucket}/none: expected objects, found none' in str(of_nothing)
    assert 'ErrorMessage "channel train: s3://b/data: cannot be read' in str(unreachable.failure)


def test_sigterm_while_a_channel_is_fetched_stops_the_job_at_once(
    base: Base, faulty: Faulty, s3: S3, bucket: str, tmp_path: Path
) -> None:
    base.program("print('ran')\n")
    put(s3, bucket, tmp_path, "data/a.txt", "1")
    faulty.fault = lambda method, path: "hang" if method == "GET" and path.endswith("a.txt") else ""

    with live(base, **{**faulty.environ, **with_channel(base, f"{bucket}/data")}) as train:
        ends_s = time.monotonic() + 60
        while not faulty.count("GET", "a.txt"):
            assert time.monotonic() < ends_s, train.err
            time.sleep(0.1)
        train.signal()
        done = train.end(deadline_s=20)

    assert (done.status, done.stdout) == (143, b""), done
    assert done.outcome["status"] == "stopped"
