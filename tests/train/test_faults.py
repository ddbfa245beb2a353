"""Faults of the system on the way to the script: whatever fails, the job's end is filed, with a true exit code."""

import io
import os
import random
import resource
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.train.base import TRAIN, Base, Done
from tests.train.denied import NUMBERS
from toolkit import folders

HERE = Path(__file__).parent
DENIED = (sys.executable, str(HERE / "denied.py"))
FAULTY = (sys.executable, str(HERE / "faulty_calls.py"))
PROGRAM = "open('ran', 'w').close()\nprint('done')\n"
FILED = (70, 75, 78)
SAMPLE = 12
SAMPLE_AFTER = 3
NONE = 1_000_000  # A number that no call has.


def is_filed(base: Base, done: Done) -> bool:
    """True if the files of *done* say that the job failed, and how `train` ended."""
    outcome = done.outcome
    return (
        done.status in FILED
        and not done.succeeded
        and f"ExitCode {done.status}\n" in str(done.failure)
        and (outcome["status"], outcome["exit_code"]) == ("failed", done.status)
        and bool(outcome["cause"]["message"])
        and not (base.code / "ran").exists()
    )


def is_done(base: Base, done: Done) -> bool:
    """True if the script ran, and the files of *done* say that the job succeeded."""
    return (
        done.status == 0 and done.succeeded and done.outcome["status"] == "succeeded" and (base.code / "ran").exists()
    )


@pytest.fixture
def base(base: Base) -> Base:
    base.program(PROGRAM)
    return base


@pytest.mark.parametrize(
    "names",
    [
        "sched_getaffinity",
        "waitid",
        "poll,ppoll",
        "setitimer",
        "rt_sigprocmask",
        "getrlimit,prlimit64",
        "flock",
        "sched_getaffinity,waitid,poll,ppoll,setitimer,rt_sigprocmask,getrlimit,prlimit64,flock",
    ],
)
@pytest.mark.skipif(os.uname().machine not in NUMBERS, reason="the numbers of system calls are known for two machines")
def test_a_system_call_that_a_sandbox_denies_is_done_without(base: Base, names: str) -> None:
    base.document("metric-definition-regex.json", [{"Name": "loss", "Regex": "loss=([0-9.]+)"}])
    base.program("import os\nopen('ran', 'w').close()\nprint('loss=0.5')\nos.system('true')\n")

    done = base.train(command=(*DENIED, names, *TRAIN))

    assert is_done(base, done), done.log
    assert "Traceback" not in done.log
    assert (base.output / "metrics.jsonl").read_text().count('"loss"') == 1


@pytest.mark.parametrize("name", ["pipe2", "uname"])
@pytest.mark.skipif(os.uname().machine not in NUMBERS, reason="the numbers of system calls are known for two machines")
def test_without_a_system_call_that_python_itself_needs_the_end_is_filed(base: Base, name: str) -> None:
    done = base.train(command=(*DENIED, name, *TRAIN))

    assert is_filed(base, done), done.log
    assert "Operation not permitted" in str(done.failure)


@pytest.mark.parametrize("limit", [5, 6, 8])  # Python itself does not start with 4.
def test_without_a_descriptor_left_the_end_is_filed(base: Base, limit: int) -> None:
    done = base.train(before=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit)))

    assert is_filed(base, done), done.log
    assert done.status == 75 and "Too many open files" in str(done.failure)


# Each is a state of the machine that a test cannot make: what `train` sees of it.
STATES = {
    "a clock beyond 2262": "import time\ndef late(): raise OverflowError\ntime.time_ns = time.time = late",
    "no /dev/null": "import os\nos.devnull = '/nowhere/null'",
}


@pytest.mark.parametrize("state", STATES)
def test_a_strange_state_of_the_machine_changes_no_end(base: Base, state: str) -> None:
    (base.folder / "strange.py").write_text(f"{STATES[state]}\nfrom toolkit.cli.start import train\ntrain()\n")

    done = base.train(command=(sys.executable, str(base.folder / "strange.py")))

    assert is_done(base, done), done.log


@pytest.mark.parametrize("state", STATES)
def test_nor_that_of_a_job_that_fails(base: Base, state: str) -> None:
    base.program("raise ValueError('no shard 7')\n")
    (base.folder / "strange.py").write_text(f"{STATES[state]}\nfrom toolkit.cli.start import train\ntrain()\n")

    done = base.train(command=(sys.executable, str(base.folder / "strange.py")))

    assert done.status == 1
    assert "no shard 7" in str(done.failure)
    assert done.outcome["exit_code"] == 1


# The import system takes a folder that cannot be read for one without the module.
MISSING_ONCE = """
import sys

class Once:
    def find_spec(self, name, *_):
        if name == sys.argv[1]:
            sys.meta_path.remove(self)
            raise ModuleNotFoundError("a planted fault")

sys.meta_path.insert(0, Once())
from toolkit.cli.start import train
train()
"""


@pytest.mark.parametrize("module", ["_datetime", "decimal", "typing_extensions"])
def test_a_module_that_is_missed_once_crashes_nothing(base: Base, module: str) -> None:
    (base.folder / "missing.py").write_text(MISSING_ONCE)

    done = base.train(command=(sys.executable, str(base.folder / "missing.py"), module))

    assert is_done(base, done) or is_filed(base, done), done.log


@pytest.mark.parametrize("name", ["SAGEMAKER_BASE_DIR", "TMPDIR"])
def test_a_relative_path_in_a_folder_that_was_removed_is_named(base: Base, name: str) -> None:
    gone = base.folder / "gone"
    gone.mkdir()

    def remove() -> None:
        os.chdir(gone)
        gone.rmdir()

    done = base.train({name: "somewhere/else"}, before=remove)

    assert done.status == 78
    assert f"{name}: expected an absolute path" in done.log
    assert "Traceback (most recent" not in done.log


# About as long as a path may be (PATH_MAX), and deeper than Python's functions that call themselves can go.
DEEP = "d/" * 1_850


@pytest.fixture
def top() -> Iterator[Path]:
    """A folder whose content may be so deep: pytest cannot remove it from its own."""
    folder = Path(tempfile.mkdtemp(prefix="toolkit-test-"))
    yield folder
    folders.remove(folder)


def test_a_base_of_two_thousand_levels_is_a_base(base: Base, top: Path) -> None:
    done = base.train({"SAGEMAKER_BASE_DIR": str(top / DEEP), "SAGEMAKER_PROGRAM": "train.py"})

    assert done.status == 78
    assert "expected a folder with the job" in (top / DEEP / "output/failure").read_text()


def test_temporary_files_may_be_two_thousand_levels_down(base: Base, top: Path) -> None:
    done = base.train({"TMPDIR": str(top / DEEP)})

    assert is_done(base, done), done.log


def test_a_member_of_two_thousand_levels_is_unpacked(top: Path) -> None:
    base = Base(top)
    archive = top / "source.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for name, content in (("train.py", b"open('ran', 'w').close()\n"), (f"{DEEP}leaf.txt", b"leaf\n")):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    base.hyperparameters({"sagemaker_submit_directory": str(archive)})

    done, again = base.train(), base.train()  # The second one removes what the first one placed.

    assert is_done(base, done), done.log
    assert again.status == 0, again.log


# Each has a sample of its own.
ERRORS = ["OSError", *(pytest.param(error, marks=pytest.mark.long) for error in ("MemoryError", "RuntimeError"))]


def calls(base: Base, *after: str) -> list[str]:
    """Return the calls of the system that `train` makes before it starts the script, or ("after") once that has
    ended."""
    base.program(PROGRAM)
    done = base.train(command=(*FAULTY, str(NONE), "OSError", str(base.folder / "calls"), *after))
    assert is_done(base, done), done.log
    return (base.folder / "calls").read_text().splitlines()


@pytest.mark.parametrize("error", ERRORS)
def test_the_end_is_filed_whichever_call_fails_before_the_script_starts(tmp_path: Path, error: str) -> None:
    """A sample of some 1,600 calls, another one for each error. All of them: TOOLKIT_ALL_CALLS=1, half an hour."""
    names = calls(Base(tmp_path / "counted"))
    numbers = list(range(len(names)))
    if not os.environ.get("TOOLKIT_ALL_CALLS"):
        numbers = sorted(random.Random(error).sample(numbers, SAMPLE))

    wrong = {}
    for number in numbers:
        base = Base(tmp_path / str(number))
        base.program(PROGRAM)
        done = base.train(command=(*FAULTY, str(number), error, str(base.folder / "call")))
        if not (is_done(base, done) or is_filed(base, done)):
            wrong[(number, names[number])] = done

    assert not wrong


@pytest.mark.parametrize("error", ERRORS)
def test_a_script_that_has_succeeded_stays_so_whichever_call_fails_afterwards(tmp_path: Path, error: str) -> None:
    """A sample of some 200 calls. A file whose own writing fails is missing; all else is there."""
    names = calls(Base(tmp_path / "counted"), "after")
    numbers = list(range(len(names)))
    if not os.environ.get("TOOLKIT_ALL_CALLS"):
        numbers = sorted(random.Random(error).sample(numbers, SAMPLE_AFTER))

    wrong = {}
    for number in numbers:
        base = Base(tmp_path / str(number))
        base.program(PROGRAM)
        done = base.train(command=(*FAULTY, str(number), error, str(base.folder / "call"), "after"))
        if done.status != 0 or done.failure is not None or list(base.output.glob(".*.part")):
            wrong[(number, names[number])] = done

    assert not wrong
