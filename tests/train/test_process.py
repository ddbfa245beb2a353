"""Process and contract: what an orchestrator sees of `train`. Numbers are those of the contract's checklist."""

import json
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.train.base import SEES, TRAIN, Base

CONSOLE_SCRIPT = Path(sys.executable).with_name("train")
FAILS = "import sys\nprint('about to fail')\nraise RuntimeError('no such shard')\n"


def mounts() -> list[str]:
    """Return the command that starts another with mounts of its own; skips where that is not allowed."""
    command = ["unshare", "--mount"]
    if shutil.which("unshare") is None or subprocess.run([*command, "true"], capture_output=True).returncode != 0:
        pytest.skip("needs to be allowed to mount")
    return command


# 1, 2, 3, 4


@pytest.mark.skipif(not CONSOLE_SCRIPT.exists(), reason="needs the console script (scripts/setup installs it)")
def test_train_is_a_command_without_arguments(base: Base) -> None:
    """Contract point 1: as an exec-form entry point starts it."""
    base.program(SEES)

    done = base.train(command=[str(CONSOLE_SCRIPT)])

    assert (done.status, done.succeeded) == (0, True)


@pytest.mark.skipif(not CONSOLE_SCRIPT.exists(), reason="needs the console script (scripts/setup installs it)")
def test_train_runs_as_a_child_of_a_shell(base: Base) -> None:
    """Contract point 1: as the images whose entry point is a bash script start it."""
    base.program("import sys\nsys.exit(5)\n")

    done = base.train(command=["bash", "-c", f"{CONSOLE_SCRIPT}; exit $?"])

    assert done.status == 5


def test_the_base_folder_is_the_one_named_by_sagemaker_base_dir(base: Base) -> None:
    """Contract point 2."""
    base.program(SEES)

    done = base.train()

    assert done.environ["SM_MODEL_DIR"] == str(base.root / "model")
    assert done.environ["SM_INPUT_CONFIG_DIR"] == str(base.config)


@pytest.mark.root
def test_the_base_folder_is_opt_ml_where_none_is_named(base: Base) -> None:
    """Contract point 2: seen in mounts of its own, so that this machine's /opt stays as it is."""
    base.program("import os\nprint('model goes to', os.environ['SM_MODEL_DIR'])\n")
    script = f'mount -t tmpfs none /opt && cp -r {base.root} /opt/ml && exec "$@"'
    environ = {name: value for name, value in base.environ().items() if name != "SAGEMAKER_BASE_DIR"}

    done = base.train(command=[*mounts(), "sh", "-c", script, "sh", *TRAIN], environ=environ)

    assert done.status == 0
    assert b"model goes to /opt/ml/model\n" in done.stdout


def test_a_missing_configuration_is_an_error_that_says_how_to_make_one(base: Base) -> None:
    """Contract point 3: no layout is invented; the text names the folder, SAGEMAKER_BASE_DIR and `toolkit run`."""
    shutil.rmtree(base.root)

    done = base.train()

    assert done.status == 78
    assert str(base.config) in done.log
    assert "SAGEMAKER_BASE_DIR" in done.log
    assert "toolkit run" in done.log


def test_the_folders_of_the_contract_are_made(base: Base) -> None:
    """Contract point 4: seen by the script, before which nobody else could have made them."""
    base.program(
        "import os\nfor name in ('MODEL_DIR', 'OUTPUT_DIR', 'OUTPUT_DATA_DIR'): os.listdir(os.environ['SM_' + name])"
    )

    done = base.train()

    assert done.status == 0, done
    assert all((base.root / name).is_dir() for name in ("code", "model", "output", "output/data"))


def test_folders_that_are_there_already_keep_what_they_hold(base: Base) -> None:
    """Contract point 4."""
    base.program(SEES)
    for name in ("model", "output/data", "checkpoints"):
        (base.root / name).mkdir(parents=True)
        (base.root / name / "kept").write_text("kept")

    done = base.train()

    assert done.status == 0
    assert [(base.root / name / "kept").read_text() for name in ("model", "output/data", "checkpoints")] == ["kept"] * 3


# 5, 6


@pytest.mark.parametrize("name", ["hyperparameters.json", "inputdataconfig.json", "resourceconfig.json"])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "expected"),
        (b"", "an empty file"),
        (b'{\n  "a": \n}', "line 3 column 1"),
        (b"[1]", "expected an object, found"),
        (b'{"a": "\xff"}', "expected JSON, found bytes that are not UTF-8, from byte 7 on"),
    ],
)
def test_a_missing_or_broken_document_ends_with_78_and_a_text_that_names_it(
    base: Base, name: str, content: bytes | None, message: str
) -> None:
    """Contract point 5."""
    base.program(SEES)
    (base.config / name).unlink()
    if content is not None:
        base.document(name, content)

    done = base.train()

    assert done.status == 78, done
    assert done.failure is not None
    assert str(base.config / name) in done.failure[:1024]
    assert message in done.failure[:1024]
    assert done.failure.startswith("ClientError:")
    assert not done.succeeded


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("resourceconfig.json", {"hosts": "algo-1", "current_host": "algo-1"}, "$.hosts: expected a list, found"),
        ("resourceconfig.json", {"hosts": ["algo-1"]}, "current_host"),
        ("resourceconfig.json", {"hosts": ["algo-1"], "current_host": "algo-9"}, "algo-9"),
        ("inputdataconfig.json", {"train": {"TrainingInputMode": "file"}}, "'File', 'FastFile', 'Pipe'"),
        ("inputdataconfig.json", {"train": "File"}, "train"),
    ],
)
def test_a_wrong_value_in_a_document_is_named_with_its_key(
    base: Base, name: str, content: object, message: str
) -> None:
    """Contract point 5: file, key, what was expected and what was found."""
    base.program(SEES)
    base.document(name, content)

    done = base.train()

    assert done.status == 78
    assert done.failure is not None
    assert str(base.config / name) in done.failure[:1024]
    assert message in done.failure[:1024]


@pytest.mark.parametrize(
    "content",
    [
        {"hosts": ["sagemaker-local"], "current_host": "sagemaker-local"},
        {"hosts": ["a"], "current_host": "a", "topology": None},
        {"hosts": ["a"], "current_host": "a", "topology": [{"hostName": "a", "capacityUnitId": "x"}]},
        {"hosts": ["a"], "current_host": "a", "instance_groups": None, "new_in_2030": {"deep": [1]}},
        {"hosts": ["a"], "current_host": "a", "network_interface_name": "ethwe", "current_group_name": "g"},
    ],
)
def test_every_shape_of_resourceconfig_is_taken(base: Base, content: dict[str, object]) -> None:
    """Contract point 6."""
    base.program(SEES)
    base.document("resourceconfig.json", content)

    done = base.train()

    assert done.status == 0, done
    assert json.loads(done.environ["SM_HOSTS"]) == content["hosts"]


# 7, 8


def test_success_is_exit_code_0_an_empty_file_and_a_line_in_the_log(base: Base) -> None:
    """Contract point 7."""
    base.program("print('done')")

    done = base.train()

    assert (done.status, done.succeeded, done.failure) == (0, True, None)
    assert "Reporting training SUCCESS" in done.log
    assert done.outcome["status"] == "succeeded"


def test_failure_is_another_exit_code_a_file_with_the_cause_and_a_line_in_the_log(base: Base) -> None:
    """Contract point 8."""
    base.program(FAILS)

    done = base.train()

    assert (done.status, done.succeeded) == (1, False)
    assert done.failure is not None
    assert "RuntimeError: no such shard" in done.failure
    assert "Reporting training FAILURE" in done.log
    assert done.outcome["status"] == "failed"
    assert done.outcome["exit_code"] == 1


def test_a_failure_file_of_the_script_is_kept(base: Base) -> None:
    """Contract point 8: byte for byte."""
    base.program("import os, sys\nopen(os.environ['SM_OUTPUT_DIR'] + '/failure', 'w').write('mine')\nsys.exit(4)\n")

    done = base.train()

    assert (done.status, done.failure) == (4, "mine")


def no_file_can_grow() -> None:
    """Make every write to a file fail from here on, as a full disk does (pipes are no files)."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


def test_a_failure_stays_one_when_no_file_can_be_written(base: Base) -> None:
    """Contract point 8: a full disk (predecessor: exit code 0)."""
    base.program(FAILS)

    done = base.train(before=no_file_can_grow)

    assert done.status == 1
    assert "no such shard" in done.log


def test_a_success_stays_one_when_no_file_can_be_written(base: Base) -> None:
    """Contract point 7: the success file is empty, so it is there; what cannot be written is said."""
    base.program("print('done')")

    done = base.train(before=no_file_can_grow)

    assert done.status == 0, done


def test_a_failure_stays_one_when_the_output_folder_cannot_be_made(base: Base) -> None:
    """Contract point 8."""
    base.program("import sys\nsys.exit(3)\n")
    base.output.write_text("a file where the folder should be")

    done = base.train()

    assert done.status == 3, done


def test_a_failure_stays_one_when_the_script_removes_the_output_folder(base: Base) -> None:
    """Contract point 8."""
    base.program("import os, shutil, sys\nshutil.rmtree(os.environ['SM_OUTPUT_DIR'])\nsys.exit(3)\n")

    done = base.train()

    assert done.status == 3


@pytest.mark.parametrize(
    ("machine", "message"),
    [
        (b"\0\x14", "It is a program for ppc, and this machine is "),
        (b"", "It is a program (ELF), but damaged or cut short."),
    ],
    ids=["another machine's", "cut short"],
)
def test_a_program_that_this_machine_cannot_run_says_so(base: Base, machine: bytes, message: str) -> None:
    base.code.mkdir(exist_ok=True)
    (base.code / "prog").write_bytes(b"\x7fELF\1\2\1" + bytes(9) + b"\0\2" + machine)
    base.hyperparameters({"sagemaker_program": "prog"})

    done = base.train()

    assert done.status == 78
    assert message in str(done.failure)


@pytest.mark.root
@pytest.mark.parametrize("options", ["ro", "size=4k,nr_inodes=3"], ids=["read-only", "full"])
def test_a_failure_stays_one_when_the_output_folder_is(base: Base, options: str) -> None:
    """Contract point 8: a real read-only and a real full file system under output/."""
    base.program("import sys\nsys.exit(3)\n")
    base.output.mkdir()
    script = f'mount -t tmpfs -o {options} none {base.output} && exec "$@"'

    done = base.train(command=[*mounts(), "sh", "-c", script, "sh", *TRAIN])

    assert done.status == 3, done
    assert b"left by an earlier run" not in done.stderr


@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("raise OSError('without a number')", 1),
        ("raise TimeoutError", 1),
        ("import socket\nraise socket.timeout", 1),
        ("raise KeyboardInterrupt", 130),
        ("raise SystemExit('in words')", 1),
        ("raise SystemExit(3)", 3),
        ("import os\nos._exit(3)", 3),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", 137),
    ],
)
@pytest.mark.parametrize("way", ["program", "plugin"])
def test_no_end_but_a_true_success_is_reported_as_one(base: Base, way: str, end: str, status: int) -> None:
    """Contract point 8 (F1): as a script and as a framework's plug-in function."""
    if way == "program":
        base.program(end)
        done = base.train()
    else:
        body = "\n    ".join(end.splitlines())
        base.program(f"def main():\n    {body}\n", "plugged.py")
        base.hyperparameters(program=None)
        done = base.train(SAGEMAKER_TRAINING_MODULE="plugged:main", PYTHONPATH=str(base.code))

    assert done.status == status, done
    assert not done.succeeded
    assert done.failure is not None


# 9


@pytest.mark.parametrize("code", [1, 2, 3, 77, 127, 255])
def test_the_exit_code_of_the_script_is_that_of_train(base: Base, code: int) -> None:
    """Contract point 9: passed through (the predecessor made every one of them 1)."""
    base.program(f"import sys\nsys.exit({code})")

    done = base.train()

    assert done.status == code
    assert done.failure is not None
    assert f"ExitCode {code}\n" in done.failure


@pytest.mark.parametrize("name", ["SIGKILL", "SIGSEGV", "SIGABRT", "SIGTERM"])
def test_death_by_a_signal_is_128_and_the_signal(base: Base, name: str) -> None:
    """Contract point 9."""
    base.program(
        "import os, resource, signal\n"
        "resource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n"
        f"os.kill(os.getpid(), signal.{name})\n"
    )

    done = base.train()

    assert done.status == 128 + signal.Signals[name]
    assert done.failure is not None
    assert name in done.failure[:1024]


# 10, 11, 12


def test_the_first_1024_characters_hold_class_exit_code_and_cause(base: Base) -> None:
    """Contract point 10: behind an early harmless warning, 3,000 lines of log and a deep traceback."""
    base.program(
        "import sys\n"
        "print('ImportError: no flash_attn, going on without', file=sys.stderr)\n"
        "for step in range(3000): print('step', step, 'x' * 60)\n"
        "def deep(n):\n"
        "    if n: return deep(n - 1)\n"
        "    raise ValueError('loss is ' + 'nan ' * 50)\n"
        "deep(200)\n"
    )

    done = base.train()

    assert done.failure is not None
    head = done.failure[:1024]
    assert head.startswith('ExecuteUserScriptError:\nExitCode 1\nErrorMessage "')
    assert "ValueError: loss is nan nan" in head
    assert "flash_attn" not in head
    assert '"\nCommand "' in head or "\nCommand " in head
    assert "algo-1" in head


def test_the_failure_text_keeps_the_shape_that_people_parse(base: Base) -> None:
    """Contract point 11."""
    base.hyperparameters({"epochs": "3"})
    base.program("import sys\nprint('out of luck', file=sys.stderr)\nsys.exit(9)")

    done = base.train()

    assert done.failure is not None
    assert done.failure.startswith('ExecuteUserScriptError:\nExitCode 9\nErrorMessage "')
    assert "out of luck" in done.failure
    assert '\nCommand "' in done.failure
    assert "train.py --epochs 3" in done.failure[done.failure.index("\nCommand ") :]


def test_a_requirement_that_cannot_be_installed_is_named(base: Base) -> None:
    """Contract point 12: InstallRequirementsError, with pip's own words."""
    base.program(SEES)
    base.program("./no-such-folder\n", "requirements.txt")

    done = base.train()

    assert done.status != 0
    assert done.failure is not None
    assert done.failure.startswith("InstallRequirementsError:\nExitCode 1\n")
    assert "no-such-folder" in done.failure[:1024]


def test_a_package_that_cannot_be_installed_is_named(base: Base) -> None:
    """Contract point 12: InstallModuleError."""
    base.program(SEES)
    base.program('[build-system]\nrequires = []\nbuild-backend = "no_such_backend"\n', "pyproject.toml")

    done = base.train()

    assert done.status != 0
    assert done.failure is not None
    assert done.failure.startswith("InstallModuleError:\n")
    assert "no_such_backend" in done.log


@pytest.mark.parametrize("entry", ["missing.py", "../train.py", "", "-c.py", "train.py; rm -rf x", "/etc/passwd"])
def test_an_entry_point_that_is_not_there_or_not_allowed_is_a_client_error(base: Base, entry: str) -> None:
    """Contract point 12: ClientError, 78, naming what was asked for."""
    base.program(SEES)
    base.program(SEES, "other.py")  # An empty name is none, and one script alone would need no name.
    base.hyperparameters(program=entry)

    done = base.train()

    assert done.status == 78, done
    assert done.failure is not None
    assert done.failure.startswith("ClientError:\n")
    assert entry in done.failure
