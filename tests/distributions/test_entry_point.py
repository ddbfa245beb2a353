"""Plug-ins that call `entry_point.run` under a real `train`: the toolkit's launchers, reports, stops and exit codes."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.train.base import SEES, Base, Done

MODULE = "framework:main"
# What AWS's plug-ins do: everything from the job, one runner.
PLUGIN = """
import os, sys
from sagemaker_training import entry_point, environment, errors, runner
def main():
    env = environment.Environment()
    kind = getattr(runner, os.environ.get("KIND", "Process") + "RunnerType")
    run = lambda **more: entry_point.run(uri=env.module_dir, user_entry_point=env.user_entry_point,
                                         args=env.to_cmd_args(), env_vars=env.to_env_vars(), capture_error=True,
                                         runner_type=kind, **more)
"""


def framework(base: Base, *lines: str) -> None:
    """Write the plug-in; *lines* are the end of its `main`."""
    base.program(PLUGIN + "".join(f"    {line}\n" for line in lines), "framework.py")


def image(base: Base, python: Path, /, *words: str, deadline_s: float = 120.0, **more: str) -> Done:
    """Run *words*, by default `train`, in the image whose interpreter is *python*."""
    command = words or (str(python.parent / "train"),)
    return base.train(environ(base, python, **more), command=command, deadline_s=deadline_s)


def environ(base: Base, python: Path, **more: str) -> dict[str, str]:
    path = os.pathsep.join([str(base.folder / "bin"), str(python.parent), "/usr/bin", "/bin"])
    return {"SAGEMAKER_TRAINING_MODULE": MODULE, "PATH": path, **more}


def test_a_script_gets_the_plug_ins_arguments_and_variables(base: Base, python: Path) -> None:
    base.hyperparameters({"epochs": "3", "learning-rate": "0.1"})
    framework(base, "os.environ['SET_HERE'] = 'yes'", "run()", "print('after the script')")
    base.program(SEES)

    done = image(base, python)

    assert (done.status, done.succeeded) == (0, True), done
    assert done.argv == ["--epochs", "3", "--learning-rate", "0.1"]
    assert json.loads(done.environ["SM_HPS"]) == {"epochs": 3, "learning-rate": 0.1}
    assert (done.environ["SET_HERE"], done.cwd) == ("yes", str(base.code.resolve()))
    assert "after the script" in done.log


def test_other_arguments_and_variables_of_the_plug_in_reach_the_script(base: Base, python: Path) -> None:
    base.hyperparameters({"epochs": "3"})
    framework(
        base,
        "env.hyperparameters['model_dir'] = 's3://b/job'",
        "given = {**env.to_env_vars(), 'TF_CONFIG': '{}', 'SM_MODEL_DIR': '/elsewhere'}",
        "entry_point.run(env.module_dir, env.user_entry_point, ['--own', 'a b'], given)",
        "print('here', os.environ['TF_CONFIG'])",
    )
    base.program(SEES)

    done = image(base, python)

    assert done.argv == ["--own", "a b"], done
    assert (done.environ["TF_CONFIG"], done.environ["SM_MODEL_DIR"]) == ("{}", "/elsewhere")
    assert done.environ["SM_HP_MODEL_DIR"] == "s3://b/job"
    assert "here {}" in done.log


@pytest.mark.parametrize(
    ("end", "status", "text"),
    [
        ("raise ValueError('loss is nan')", 1, "ValueError: loss is nan"),
        ("import sys; sys.exit(7)", 7, "ended with code 7"),
        ("import os; os.kill(os.getpid(), 9)", 137, "killed by SIGKILL"),
    ],
)
def test_the_scripts_failure_is_the_jobs(base: Base, python: Path, end: str, status: int, text: str) -> None:
    framework(base, "run()")
    base.program(end)

    done = image(base, python)

    failure = (done.failure or "")[:1024]
    assert done.status == status, done
    assert failure.startswith(f"ExecuteUserScriptError:\nExitCode {status}\nErrorMessage ")
    assert text in failure
    assert "framework.py" not in failure


def test_a_plug_in_may_catch_the_error(base: Base, python: Path) -> None:
    framework(
        base,
        "try: run()",
        "except errors.ExecuteUserScriptError as error:",
        "    assert error.return_code == '5' and 'train.py' in error.cmd, vars(error)",
        "    assert 'ErrorMessage \"KeyError: ' in str(error), str(error)",
    )
    base.program("import sys\nsys.excepthook = lambda *given: (sys.__excepthook__(*given), sys.exit(5))\n{}['a']\n")

    assert image(base, python).status in (0, 5)  # 5 is asserted in the plug-in; an AssertionError would be 1.


def test_a_script_that_does_not_exist_is_a_client_error_with_78(base: Base, python: Path) -> None:
    framework(base, "run()")
    base.program("", "other.py")

    done = image(base, python)

    assert done.status == 78, done
    assert (done.failure or "").startswith("ClientError:\nExitCode 78\n")
    assert "train.py" in (done.failure or "")


def test_a_runner_type_that_is_none_is_refused(base: Base, python: Path) -> None:
    framework(base, "entry_point.run(env.module_dir, 'train.py', [], runner_type='mpi')")
    base.program("")

    done = image(base, python)

    assert done.status == 1
    assert "runner_type: expected a RunnerType, found 'mpi'" in (done.failure or "")


def test_without_wait_the_process_is_returned_at_once(base: Base, python: Path) -> None:
    go = base.folder / "go"
    framework(
        base,
        "process = run(wait=False)",
        "assert process.poll() is None",
        f"open({str(go)!r}, 'w').close()",
        "print('ended with', process.wait())",
    )
    base.program(f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)\nraise SystemExit(3)\n")

    done = image(base, python)

    assert done.status == 0, done
    assert "ended with 3" in done.log


def test_a_plug_in_may_run_its_script_in_a_thread(base: Base, python: Path) -> None:
    framework(base, "import threading", "thread = threading.Thread(target=run)", "thread.start()", "thread.join()")
    base.program("print('in a thread')\n")

    done = image(base, python)

    assert (done.status, "in a thread" in done.log) == (0, True), done


def test_children_of_the_plug_in_are_its_own(base: Base, python: Path) -> None:
    """AWS's MXNet plug-in starts a scheduler, its TensorFlow plug-in a parameter server."""
    framework(
        base,
        "import subprocess",
        "child = subprocess.Popen(['sh', '-c', 'read line; exit 4'], stdin=subprocess.PIPE)",
        "run()",
        "child.stdin.close()",
        "print('child ended with', child.wait())",
    )
    base.program("print('script')\n")

    done = image(base, python)

    assert (done.status, "child ended with 4" in done.log) == (0, True), done


def test_a_stop_reaches_the_script_through_the_plug_in(base: Base, python: Path) -> None:
    ready = base.folder / "ready"
    framework(base, "run()")
    base.program(
        "import signal, sys\n"
        "def save(*_):\n    print('saved', flush=True)\n    sys.exit(0)\n"
        f"signal.signal(signal.SIGTERM, save)\nopen({str(ready)!r}, 'w').close()\nwhile True: signal.pause()\n"
    )
    process = started(base, python, (str(python.parent / "train"),), environ(base, python))
    wait_for(ready)

    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)

    assert b"saved" in out, (out, err)
    assert process.returncode in (0, 143), (out, err)
    outcome = json.loads((base.output / "outcome.json").read_bytes())
    assert outcome["status"] in ("stopped", "succeeded"), outcome


def test_a_script_that_ignores_the_stop_is_killed_after_the_grace(base: Base, python: Path) -> None:
    ready = base.folder / "ready"
    framework(base, "run()")
    base.program(
        "import os, signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"with open({str(ready)!r} + '.new', 'w') as file: file.write(str(os.getpid()))\n"
        f"os.rename({str(ready)!r} + '.new', {str(ready)!r})\nwhile True: signal.pause()\n"
    )
    variables = environ(base, python, TOOLKIT_GRACE_S="1")
    process = started(base, python, (str(python.parent / "train"),), variables)
    wait_for(ready)

    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)

    assert process.returncode == 143
    assert not Path(f"/proc/{ready.read_text()}").exists()


def started(base: Base, python: Path, command: Sequence[str], more: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        command, env=base.environ(**more), cwd=base.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def wait_for(path: Path) -> None:
    deadline_s = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline_s, f"{path} did not appear"
        time.sleep(0.01)


def test_metrics_of_the_scripts_output_are_captured_once(base: Base, python: Path) -> None:
    base.document("metric-definition-regex.json", [{"Name": "loss", "Regex": "loss=([0-9.]+)"}])
    framework(base, "run()")
    base.program("print('loss=0.5')\n")

    done = image(base, python)

    lines = (base.output / "metrics.jsonl").read_text().splitlines()
    assert (done.status, [json.loads(line)["value"] for line in lines]) == (0, [0.5]), done


def test_metrics_of_a_plug_ins_ranks_carry_their_ranks(base: Base, python: Path) -> None:
    """Also where the regex begins with the line: the rank's prefix is no part of it."""
    base.document("metric-definition-regex.json", [{"Name": "loss", "Regex": "^loss=([0-9.]+)"}])
    framework(base, "run()")
    base.program("import os\nprint('loss=' + os.environ['RANK'] + '.5')\n")

    done = image(base, python, KIND="TorchDistributed", TOOLKIT_PROCESSES_PER_HOST="2")

    lines = [json.loads(line) for line in (base.output / "metrics.jsonl").read_text().splitlines()]
    assert done.status == 0, done
    assert sorted((line["rank"], line["value"]) for line in lines) == [(0, 0.5), (1, 1.5)], done


def test_a_source_that_train_has_placed_is_not_fetched_again(base: Base, python: Path) -> None:
    source = base.folder / "source"
    source.mkdir()
    (source / "train.py").write_text("print('as submitted')\n")
    (source / "framework.py").write_text(
        PLUGIN
        + "    open(os.path.join(environment.code_dir, 'train.py'), 'a').write(\"print('patched')\\n\")\n    run()\n"
    )
    base.hyperparameters({"sagemaker_submit_directory": json.dumps(str(source))})

    done = image(base, python)

    assert done.status == 0, done
    assert done.stdout.decode().split() == ["as", "submitted", "patched"]


def test_hyperparameters_too_large_for_an_environment_reach_the_script_in_its_file(base: Base, python: Path) -> None:
    base.hyperparameters({"large": "x" * 130_000})
    framework(base, "entry_point.run(env.module_dir, env.user_entry_point, ['-n', '1'], env.to_env_vars())")
    base.program(
        "import json, os\nfound = json.load(open(os.environ['SM_TRAINING_ENV_FILE']))\n"
        "print('large', len(json.loads(found['SM_TRAINING_ENV'])['hyperparameters']['large']))\n"
    )

    done = image(base, python)

    assert (done.status, "large 130000" in done.log) == (0, True), done.log[-2000:]


def test_bytes_that_are_no_text_reach_the_script_without_a_folder_for_temporary_files(base: Base, python: Path) -> None:
    framework(base, "os.environ['ODD'] = os.fsdecode(b'\\xff\\xfe')", "run()")
    base.program("import os\nprint('ODD', list(os.environb[b'ODD']))\n")

    done = image(base, python)

    assert (done.status, "ODD [255, 254]" in done.log) == (0, True), done


def test_a_failure_whose_arguments_are_no_text_keeps_its_exit_code_and_cause(base: Base, python: Path) -> None:
    odd = "os.fsdecode(b'--\\xff')"
    framework(base, f"entry_point.run(env.module_dir, env.user_entry_point, [{odd}], env.to_env_vars())")
    base.program("import sys\nraise SystemExit(7) if sys.argv[1] else 0\n")

    done = image(base, python)

    assert done.status == 7, done
    assert (done.failure or "").startswith("ExecuteUserScriptError:\nExitCode 7\n")


def test_a_plug_in_that_ignores_the_ends_of_its_children_still_sees_a_failure(base: Base, python: Path) -> None:
    """The kernel then reaps the supervisor, and subprocess takes its exit code for 0."""
    framework(base, "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)", "run()")
    base.program("raise SystemExit(3)\n")

    done = image(base, python)

    assert (done.status, done.succeeded) == (3, False), done


def test_a_runner_of_the_plug_ins_own_is_taken(base: Base, python: Path) -> None:
    framework(
        base,
        "from sagemaker_training import process",
        "own = process.ProcessRunner(env.user_entry_point, ['--own', '1'], env.to_env_vars())",
        "entry_point.run(env.module_dir, env.user_entry_point, [], runner_type=own)",
    )
    base.program(SEES)

    done = image(base, python)

    assert (done.status, done.argv) == (0, ["--own", "1"]), done


def test_the_module_train_is_the_command_train(base: Base, python: Path) -> None:
    """The ENTRYPOINT of public Dockerfiles: python -m sagemaker_training.cli.train."""
    base.hyperparameters({"epochs": "3"})
    base.program(SEES)

    done = image(base, python, str(python), "-m", "sagemaker_training.cli.train", SAGEMAKER_TRAINING_MODULE="")

    assert (done.status, done.succeeded) == (0, True), done
    assert done.argv == ["--epochs", "3"]


def test_a_program_that_is_no_plug_in_gets_the_supervisor_too(base: Base, python: Path) -> None:
    """An image whose ENTRYPOINT is a program of its own."""
    framework(base, "run()")
    base.program("raise RuntimeError('too hot')\n")

    done = image(base, python, str(python), "-c", "import sys; sys.path.insert(0, 'opt/ml/code')\n"
                 "import framework; framework.main()")  # fmt: skip

    assert done.status == 1
    assert 'ErrorMessage "RuntimeError: too hot' in done.log


@pytest.mark.torch
@pytest.mark.parametrize("kind", ["TorchDistributed", pytest.param("SMDataParallel", marks=pytest.mark.long)])
def test_torchrun_starts_the_ranks_and_the_first_failure_is_reported(base: Base, python: Path, kind: str) -> None:
    base.hyperparameters({"sagemaker_pytorch_ddp_enabled": "true", "sagemaker_instance_type": '"ml.p4d.24xlarge"'})
    framework(base, "run()")
    base.program(
        "import torch.distributed as dist\ndist.init_process_group('gloo')\n"
        "if dist.get_rank() == 1: raise ValueError('rank one is ill')\ndist.barrier()\n"
    )

    done = image(base, python, KIND=kind, TOOLKIT_PROCESSES_PER_HOST="2")

    failure = (done.failure or "")[:1024]
    assert done.status == 1, done
    assert "launcher torchrun, world size 2" in done.log
    assert 'ErrorMessage "ValueError: rank one is ill' in failure
    assert 'ExtraInfo "host algo-1, rank 1 (local rank 1), pid ' in failure
    assert "torch.distributed.run" in failure


@pytest.mark.torch
def test_two_hosts_report_the_rank_that_failed(base: Base, python: Path) -> None:
    source = base.folder / "source"
    source.mkdir()
    (source / "framework.py").write_text(PLUGIN + "    run()\n")
    (source / "train.py").write_text(
        "import torch.distributed as dist\ndist.init_process_group('gloo')\n"
        "if dist.get_rank() == 1: raise ValueError('rank one is ill')\ndist.barrier()\n"
    )
    words = ("run", "source/train.py", "--hosts", "2", "--distribution", "torch_distributed", "--name", "two")
    variables = ("--env", f"SAGEMAKER_TRAINING_MODULE={MODULE}", "--env", "KIND=TorchDistributed")

    done = base.train(
        command=(str(python.parent / "toolkit"), *words, *variables),
        environ={"PATH": environ(base, python)["PATH"], "HOME": str(base.folder)},
        deadline_s=180,
    )

    failures = [file.read_text()[:1024] for file in sorted(base.folder.glob("jobs/two/hosts/*/opt/ml/output/failure"))]
    assert (done.status, len(failures)) == (1, 2), done
    for text in failures:
        assert 'ErrorMessage "ValueError: rank one is ill' in text, failures
        assert "host algo-2, rank 1" in text, failures
