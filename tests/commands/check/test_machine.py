import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from toolkit.commands.check.machine import GIB, disks, gpus, judged_limits, scratch, shared_memory, size
from toolkit.job.machine import Machine

UNLIMITED = resource.RLIM_INFINITY
NO_ROOM = Path("/proc")  # A file system of 0 bytes.


@pytest.fixture
def unwritable(tmp_path: Path) -> Path:
    """A folder that this user cannot write to; root needs a read-only mount for that."""
    folder = tmp_path / "unwritable"
    folder.mkdir(mode=0o500)
    mounts = [Path(line.split()[1]) for line in Path("/proc/self/mounts").read_text().splitlines()]
    for place in (folder, *mounts):
        if place.is_dir() and not os.access(place, os.W_OK):
            return place
    pytest.skip("needs a folder that even root cannot write to")


def machine(**more: object) -> Machine:
    return Machine(cpus=1, cpus_total=1, memory_bytes=1, **more)  # type: ignore[arg-type]


def test_folders_on_one_disk_are_one_line(tmp_path: Path) -> None:
    (result,) = disks({"model": tmp_path / "not/yet/there", "output": tmp_path})

    assert result.status in ("ok", "warn")  # How full the tester's disk is, is no matter here.
    assert result.found.startswith("model, output: ")


def test_a_folder_that_cannot_be_written_to_fails_by_itself(tmp_path: Path, unwritable: Path) -> None:
    results = disks({"model": tmp_path, "output": unwritable / "output"})

    assert [result.status for result in results][1:] == ["fail"]
    assert results[1].found.startswith(f"output: {unwritable} cannot be written to")


def test_a_file_where_a_folder_should_be_fails(tmp_path: Path) -> None:
    (tmp_path / "model").touch()

    (result,) = disks({"model": tmp_path / "model"})

    assert (result.status, result.found) == (
        "fail",
        f"model: {tmp_path}/model cannot be written to (it is no folder)",
    )


def test_a_mount_without_room_is_little_shared_memory_only_for_a_busy_job() -> None:
    busy, alone = (shared_memory(NO_ROOM, busy=busy) for busy in (True, False))

    assert (busy.status, alone.status) == ("warn", "ok")
    assert "--shm-size" in busy.advice


def test_a_large_mount_is_enough(tmp_path: Path) -> None:
    if os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize < GIB:
        pytest.skip("needs 1 GiB of free disk")

    assert shared_memory(tmp_path, busy=True).status == "ok"


def test_an_absent_mount_is_told(tmp_path: Path) -> None:
    result = shared_memory(tmp_path / "shm", busy=False)

    assert (result.status, result.found) == ("warn", "cannot be looked at (No such file or directory)")


@pytest.mark.parametrize(
    ("files", "locked", "pins_memory", "busy", "expected", "advised"),
    [
        (1024, 65536, False, False, "nofile 1,024, memlock 64 KiB", []),
        (1024, 65536, False, True, "nofile 1,024, memlock 64 KiB", ["nofile"]),
        (65536, 65536, True, True, "nofile 65,536, memlock 64 KiB", ["memlock=-1"]),
        (1024, 8 << 20, True, True, "nofile 1,024, memlock 8 MiB", ["nofile", "memlock=-1"]),
        (UNLIMITED, UNLIMITED, True, True, "nofile unlimited, memlock unlimited", []),
    ],
)
def test_limits_matter_to_those_who_meet_them(
    files: int, locked: int, pins_memory: bool, busy: bool, expected: str, advised: list[str]
) -> None:
    result = judged_limits(files, locked, pins_memory=pins_memory, busy=busy)

    assert (result.found, result.status) == (expected, "warn" if advised else "ok")
    assert [word for word in ("nofile", "memlock=-1") if word in result.advice] == advised


def test_scratch_must_be_writable(tmp_path: Path, unwritable: Path) -> None:
    assert scratch(unwritable / "toolkit-0").status == "fail"
    assert scratch(tmp_path / "toolkit-0").found == str(tmp_path / "toolkit-0")


def test_a_scratch_folder_that_others_may_write_to_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "toolkit-0").mkdir()
    (tmp_path / "toolkit-0").chmod(0o777)

    result = scratch(tmp_path / "toolkit-0")

    assert result.status == "warn"
    assert "found a folder that others may write to (mode 777)" in result.found


def test_a_noexec_scratch_is_a_warning(tmp_path: Path) -> None:
    """/dev/shm is such a mount in docker; elsewhere one is made, in mounts of its own."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    noexec = [Path(place) for _, place, _, flags, *_ in mounts if "noexec" in flags.split(",")]
    place = next((place for place in noexec if place.is_dir() and os.access(place, os.W_OK)), None)
    if place is not None:
        assert scratch(place / "toolkit-0").status == "warn"
        return
    program = (
        "import sys, pathlib as p, toolkit.commands.check.machine as m; print(m.scratch(p.Path(sys.argv[1])).status)"
    )
    script = 'mount -t tmpfs -o noexec none "$1" && exec "$2" -c "$3" "$1"'
    command = ["unshare", "--mount", "sh", "-c", script, "sh", str(tmp_path), sys.executable, program]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[3])
    if "Operation not permitted" in done.stderr:
        pytest.skip("needs a writable mount with noexec, or to be allowed to make one")

    assert done.stdout == "warn\n"


@pytest.mark.parametrize(
    ("facts", "environ", "processes", "status", "expected"),
    [
        ({}, {}, 1, "ok", "none"),
        ({}, {"NVIDIA_VISIBLE_DEVICES": "void"}, 1, "ok", "none"),
        ({}, {"NVIDIA_VISIBLE_DEVICES": "all"}, 1, "warn", "none, although NVIDIA_VISIBLE_DEVICES asks for some"),
        ({"accelerator": "nvidia", "accelerators": 8}, {}, 8, "ok", "8 GPUs for 8 processes"),
        ({"accelerator": "nvidia", "accelerators": 1}, {}, 2, "warn", "1 GPU for 2 processes"),
        ({"accelerator": "neuron", "accelerators": 32}, {}, 32, "ok", "32 Neuron cores for 32 processes"),
        ({"notes": ("nvidia-smi hangs",)}, {}, 1, "warn", "nvidia-smi hangs"),
    ],
)
def test_accelerators_are_counted_against_the_processes(
    facts: dict[str, object], environ: dict[str, str], processes: int, status: str, expected: str
) -> None:
    result = gpus(machine(**facts), environ, processes)

    assert (result.status, result.found) == (status, expected)


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (64 << 20, "64 MiB"), (3 << 29, "1.5 GiB"), (79 * GIB, "79 GiB"), (5 << 50, "5120 TiB")],
)
def test_sizes_are_for_people(count: int, text: str) -> None:
    assert size(count) == text
