import importlib.util
import json
import os
import pty
import select
import signal
import subprocess
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.commands.simulate.toolkit_run import COMMAND, ROOT, ToolkitRun
from toolkit.commands import jobs
from toolkit.metrics.file import SampleFile
from toolkit.metrics.sample import Sample
from toolkit.metrics.tail import MetricsTail
from toolkit.train.supervise.signals import SAME_REQUEST_S

LOSS = ("--metric", r"loss=loss=([0-9.]+)", "--metric", r"step=step=(\d+)")


def test_a_job_leaves_its_results_in_its_folder(tmp_path: Path) -> None:
    with ToolkitRun(tmp_path, "counts_to.py", "--hyperparameter", "steps=2", "--name", "counting", *LOSS) as job:
        assert job.end() == 0

    facts = job.report
    assert (facts["name"], facts["status"], facts["failure_reason"]) == ("counting", "Completed", "")
    assert facts["metrics"] == {"loss": 0.5, "step": 2.0}
    assert facts["training_seconds"] > 0
    assert facts["billable_seconds"] == facts["training_seconds"]
    assert facts["start_time"] < facts["end_time"]
    assert job.archive("model.tar.gz") == {"model.txt": b"2"}
    assert [json.loads(line)["value"] for line in (job.folder / "metrics.jsonl").read_text().splitlines()] == [
        1,
        1,
        2,
        0.5,
    ]
    assert "step=2 loss=0.5\n" in (job.folder / "logs/algo-1.log").read_text()
    assert "\nstep=2 loss=0.5\n" in job.console
    assert "counting: Completed, exit code 0" in job.console


def test_new_samples_are_read_once_and_cut_lines_later(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    tail = MetricsTail(path)
    assert list(tail.read_new()) == []
    written = SampleFile(path, warn=print)
    first = Sample(name="loss", value=float("inf"), time_s=1, host="algo-1", rank=0, step=2)
    written.append([first])
    with path.open("ab") as file:
        file.write(b"{cut by a full disk\n" + b'{"name":"loss","val')

    assert list(tail.read_new()) == [first]
    assert list(tail.read_new()) == []
    with path.open("ab") as file:
        file.write(b'ue":1,"time_s":2,"host":"algo-1"}\n')
    assert [sample.value for sample in tail.read_new()] == [1]
    written.close()


def test_on_a_terminal_a_table_follows_the_lines_and_is_gone_at_the_end(tmp_path: Path) -> None:
    pytest.importorskip("rich")
    main_end, theirs = pty.openpty()
    program = str(ToolkitRun.program("counts_to.py"))
    argv = [*COMMAND, program, "--job-dir", "job", "--hyperparameter", "steps=2", *LOSS]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "100", "LINES": "40"}
    process = subprocess.Popen(argv, cwd=tmp_path, env=environ, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    screen = b""
    while piece := read_terminal(main_end):
        screen += piece
    os.close(main_end)

    assert process.wait() == 0
    table, _, end = screen.decode().rpartition("\x1b[2K")
    for words in ("ended with 0", "host", "state", "loss", "0.5", "step=2 loss=0.5\r\n"):
        assert words in table
    assert "Completed, exit code 0" in end


@pytest.mark.parametrize(("words", "environ"), [(("--plain",), {}), ((), {"NO_COLOR": "1"}), (("-q",), {})])
def test_on_a_terminal_that_wants_no_escapes_there_are_none(
    tmp_path: Path, words: tuple[str, ...], environ: dict[str, str]
) -> None:
    main_end, theirs = pty.openpty()
    argv = [
        *COMMAND,
        str(ToolkitRun.program("counts_to.py")),
        "--job-dir",
        "job",
        "--hyperparameter",
        "steps=2",
        *words,
    ]
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", **environ}
    process = subprocess.Popen(argv, cwd=tmp_path, env=variables, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    screen = b""
    while piece := read_terminal(main_end):
        screen += piece
    os.close(main_end)

    assert process.wait() == 0
    assert b"Completed, exit code 0" in screen
    assert b"\x1b" not in screen


@pytest.mark.parametrize(
    ("words", "bars"),
    [
        (("--hosts", "2"), [b"algo-1 |  50%", b"algo-2 |  50%"]),
        pytest.param(
            ("--distribution", "pytorchddp", "--processes-per-host", "2"),
            [b"[algo-1 rank 0]  50%", b"[algo-1 rank 1]  50%"],
            marks=[
                pytest.mark.torch,
                pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed"),
            ],
        ),
    ],
)
def test_on_a_terminal_bars_are_shown_before_their_lines_end(
    tmp_path: Path, words: tuple[str, ...], bars: list[bytes]
) -> None:
    pytest.importorskip("rich")
    (tmp_path / "src").mkdir()
    (tmp_path / "src/bar.py").write_text(
        "import os, sys, time\n"
        "sys.stderr.write('\\r 10%\\r 50%')\n"
        f"while not os.path.exists({str(tmp_path / 'seen')!r}): time.sleep(0.05)\n"
        "sys.stderr.write('\\r100%\\n')\n"
    )
    main_end, theirs = pty.openpty()
    argv = [*COMMAND, "src/bar.py", "--job-dir", "job", *words]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "100", "LINES": "40"}
    process = subprocess.Popen(argv, cwd=tmp_path, env=environ, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    screen = b""
    ends_s = time.monotonic() + 60
    while select.select([main_end], [], [], 60)[0] and (piece := read_terminal(main_end)):
        screen += piece
        if all(bar in screen for bar in bars) or time.monotonic() > ends_s:
            (tmp_path / "seen").touch()
    os.close(main_end)

    assert process.wait(60) == 0
    assert all(bar in screen for bar in bars)
    assert b"100%\r\n" in screen
    assert "100%" in (tmp_path / "job/logs/algo-1.log").read_text()


def read_terminal(fd: int) -> bytes:
    try:
        return os.read(fd, 65536)
    except OSError:  # EIO: the last process that had the other side open has ended.
        return b""


def test_several_hosts_are_told_apart_and_billed_each(tmp_path: Path) -> None:
    with ToolkitRun(tmp_path, "counts_to.py", "--hosts", "3", "--hyperparameter", "steps=1") as job:
        assert job.end() == 0

    assert job.codes == {"algo-1": 0, "algo-2": 0, "algo-3": 0}
    assert job.report["billable_seconds"] == pytest.approx(3 * job.report["training_seconds"])
    for host in job.codes:
        assert f"\n{host} | step=1 loss=1.0\n" in job.console
        assert "step=1 loss=1.0\n" in (job.folder / f"logs/{host}.log").read_text()


def test_one_failing_host_stops_the_others_and_is_the_jobs_cause(tmp_path: Path) -> None:
    words = ("--hyperparameter", "host=algo-2", "--hyperparameter", f"meet={tmp_path / 'meet'}")
    secret = ("--env", "BOOM_API_KEY=hunter2hunter2")
    with ToolkitRun(tmp_path, "fails_on_host.py", "--hosts", "2", *words, *secret) as job:
        assert job.end() == 1

    facts = job.report
    assert (facts["status"], facts["failed_host"]) == ("Failed", "algo-2")
    assert jobs.read(job.folder).mask("a log with hunter2hunter2") == "a log with ******"
    assert facts["failure_reason"].startswith("AlgorithmError: ExecuteUserScriptError:\nExitCode 1\n")
    assert "RuntimeError: boom on algo-2" in facts["failure_reason"]
    assert len(facts["failure_reason"]) <= len("AlgorithmError: ") + 1024
    assert job.archive("output.tar.gz") == {"told-algo-1": b""}
    summary = job.console.partition("Failed, exit code 1")[2]
    assert "boom on algo-2" in summary
    assert job.console.count("boom on algo-2") == 2  # The script's own traceback, and here.
    assert "\n  algo-1      exit code 1: was healthy; host algo-2 was the cause\n" in summary
    assert "\n  algo-2      exit code 1: script ended with code 1\n" in summary


def test_a_killed_host_vanishes_with_everything_on_it(tmp_path: Path) -> None:
    with ToolkitRun(tmp_path, "counts_to.py", "--hosts", "2", "--kill", "algo-2@1s") as job:
        assert job.end() == 75

    assert job.report["failure_reason"] == "InternalServerError: host algo-2 vanished"
    assert job.codes["algo-2"] == 137
    assert job.report["hosts"]["algo-2"]["status"] == "vanished"
    assert job.left_running(2) == set()


@pytest.mark.parametrize(("word", "secondary"), [("--stop-after", "Stopped"), ("--max-run", "MaxRuntimeExceeded")])
def test_a_limit_stops_the_job(tmp_path: Path, word: str, secondary: str) -> None:
    with ToolkitRun(tmp_path, "counts_to.py", "--hosts", "2", word, "1s") as job:
        assert job.end() == 143

    facts = job.report
    assert (facts["status"], facts["secondary_status"], facts["failure_reason"]) == ("Stopped", secondary, "")
    assert "FAILURE" not in job.console
    assert job.left_running(2) == set()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143)])
def test_a_person_stops_the_job_as_the_platform_would(tmp_path: Path, number: signal.Signals, code: int) -> None:
    with ToolkitRun(tmp_path, "counts_to.py", "--hosts", "2") as job:
        job.until("ready", times=2)
        job.signal(number)
        assert job.end() == code

    assert job.report["status"] == "Stopped"
    assert job.codes == {"algo-1": 0, "algo-2": 0}
    assert job.archive("model.tar.gz") == {"model.txt": b"3"}


def test_a_second_ctrl_c_kills(tmp_path: Path) -> None:
    with ToolkitRun(tmp_path, "ignores_all.py") as job:
        job.until("ready")
        job.signal(signal.SIGINT)
        job.until("once more kills")
        time.sleep(SAME_REQUEST_S)
        job.signal(signal.SIGINT)
        assert job.end() == 130

    assert job.report["status"] == "Stopped"
    assert job.codes == {"algo-1": 137}
    assert job.left_running(1) == set()


def test_nothing_survives_a_toolkit_run_that_is_killed(tmp_path: Path) -> None:
    with ToolkitRun(tmp_path, "ignores_all.py", "--hosts", "2") as job:
        job.until("ready", times=2)
        job.signal(signal.SIGKILL)
        job.end()

    assert job.report["status"] == "InProgress"
    assert job.all_ended_within(60, hosts=2)


def test_a_killed_job_goes_on_from_its_checkpoints(tmp_path: Path) -> None:
    checkpoints = ("--checkpoints", str(tmp_path / "kept"))
    with ToolkitRun(tmp_path, "counts_to.py", *checkpoints) as first:
        first.until("ready")
        first.signal(signal.SIGKILL)
        first.end()
    with ToolkitRun(tmp_path, "counts_to.py", *checkpoints, "--replace", "--hyperparameter", "steps=1") as second:
        assert second.end() == 0

    assert "begin=3\n" in second.console
    assert second.archive("model.tar.gz") == {"model.txt": b"4"}


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    for name in "abc":
        (folder / name).write_text(name)
    return folder


def test_a_pipe_channel_is_an_epoch_for_each_fifo(tmp_path: Path, shards: Path) -> None:
    words = ("--hosts", "2", "--channel", f"train={shards}:Pipe:ShardedByS3Key", "--hyperparameter", "epochs=3")
    with ToolkitRun(tmp_path, "reads_pipe.py", *words) as job:
        assert job.end() == 0

    assert job.archive("output.tar.gz") == {"epochs-algo-1": b"ac|ac|ac", "epochs-algo-2": b"b|b|b"}
    assert list((job.folder / "hosts/algo-1/opt/ml/input/data").iterdir()) == []


def test_a_pipe_channel_that_nobody_reads_does_not_hold_the_job(tmp_path: Path, shards: Path) -> None:
    words = ("--channel", f"train={shards}:Pipe", "--hyperparameter", "steps=1")
    with ToolkitRun(tmp_path, "counts_to.py", *words) as job:
        assert job.end() == 0


def test_channels_hyperparameters_and_groups_reach_the_script(tmp_path: Path, shards: Path) -> None:
    words = {
        "script": "lists_channels.py",
        "hyperparameter": {"epochs": 5, "name": "5", "flag": True},
        "channel": {"whole": f"{shards}:FastFile", "part": f"{shards}:ShardedByS3Key"},
        "instance_groups": [{"name": "cpu", "hosts": 1}, {"name": "gpu", "hosts": 1, "instance_type": "ml.g5.xlarge"}],
    }
    (tmp_path / "job.json").write_text(json.dumps({**words, "script": str(ToolkitRun.program("lists_channels.py"))}))
    with ToolkitRun(tmp_path, str(tmp_path / "job.json")) as job:
        assert job.end() == 0

    ranks = {name: json.loads(content) for name, content in job.archive("output.tar.gz").items()}
    argv = ["--epochs", "5", "--flag", "True", "--name", "5"]
    assert ranks == {
        "seen-algo-1.json": {"argv": argv, "group": "cpu", "whole": ["a", "b", "c"], "part": ["a", "c"]},
        "seen-algo-2.json": {"argv": argv, "group": "gpu", "whole": ["a", "b", "c"], "part": ["b"]},
    }


# As two pages of the SDK's examples give them: the built-in image classification, and run_clm.py.
SEEDS: dict[str, dict[str, Any]] = {
    "image-classification": {
        "use_pretrained_model": 1,
        "image_shape": "3,224,224",
        "num_classes": 10,
        "num_training_samples": 40000,
        "learning_rate": 0.001,
        "mini_batch_size": 8,
    },
    "run_clm": {
        "model_type": "gpt2",
        "tokenizer_name": "gpt2",
        "dataset_name": "glue",
        "dataset_config_name": "sst2",
        "do_train": True,
        "do_eval": False,
        "fp16": True,
        "per_device_eval_batch_size": 8,
        "num_train_epochs": 100,
        "block_size": 512,
        "overwrite_output_dir": True,
        "save_strategy": "no",
        "evaluation_strategy": "no",
        "logging_strategy": "epoch",
        "output_dir": "/opt/ml/model",
        "dataloader_drop_last": True,
        "per_device_train_batch_size": 10,
        "learning_rate": 5e-5 / 32 * 40,
    },
}


@pytest.mark.parametrize("written", ["words", "file"])
@pytest.mark.parametrize("name", SEEDS)
def test_values_and_channels_of_the_sdks_examples_reach_the_script_as_sagemaker_passes_them(
    tmp_path: Path, shards: Path, name: str, written: str
) -> None:
    hyperparameters = SEEDS[name]
    channels = {"train": shards, "validation": shards, "train_lst": shards / "a", "vadidation_lst": shards / "b"}
    program = str(ToolkitRun.program("lists_channels.py"))
    if written == "file":
        document = {
            "script": program,
            "hyperparameter": hyperparameters,
            "channel": {key: str(path) for key, path in channels.items()},
        }
        (tmp_path / "job.json").write_text(json.dumps(document))
        run = ToolkitRun(tmp_path, str(tmp_path / "job.json"))
    else:
        # As a person copies them: image_shape='3,224,224' loses its quotes to the shell, True has Python's spelling.
        words = [f"--hyperparameter={key}={value}" for key, value in hyperparameters.items()]
        words += [f"--channel={key}={path}" for key, path in channels.items()]
        run = ToolkitRun(tmp_path, program, *words)
    with run as job:
        assert job.end() == 0, job.console

    # sagemaker-training 5.1.4: sorted, each value one token, True as "True".
    argv = [word for key in sorted(hyperparameters) for word in (f"--{key}", str(hyperparameters[key]))]
    assert json.loads(job.archive("output.tar.gz")["seen-algo-1.json"]) == {
        "argv": argv,
        "group": "homogeneousCluster",
        "train": ["a", "b", "c"],
        "validation": ["a", "b", "c"],
        "train_lst": ["a"],
        "vadidation_lst": ["b"],
    }


def test_a_job_trains_on_from_the_archive_of_an_earlier_one(tmp_path: Path) -> None:
    with ToolkitRun(tmp_path, "trains_on.py", "--job-dir", "old") as first:
        assert first.end() == 0, first.console
    words = ("--channel", f"model={tmp_path / 'old/model.tar.gz'}")
    with ToolkitRun(tmp_path, "trains_on.py", *words) as second:
        assert second.end() == 0, second.console
    same = ("--replace", "--channel", f"model={tmp_path / 'job/model.tar.gz'}")
    with ToolkitRun(tmp_path, "trains_on.py", *same) as refused:
        assert refused.end() == 78

    assert "steps=0 of the old model\n" in first.console
    assert "steps=10 of the old model\n" in second.console
    channel = second.folder / "hosts/algo-1/opt/ml/input/data/model"
    assert [path.name for path in channel.iterdir()] == ["model.tar.gz"]
    assert second.archive("model.tar.gz") == {"weights.json": b'{"steps": 20}'}
    assert "expected data for channel model, found a result of an earlier job that this run replaces" in refused.console
    assert (second.folder / "model.tar.gz").exists()


CHANGES = """
import os
from pathlib import Path

folder = Path(os.environ["SM_CHANNEL_TRAIN"])
assert {path.name: path.read_text() for path in folder.iterdir()} == {name: name for name in "abcd"}
for change in (
    lambda: (folder / "a").open("a").close(),
    lambda: os.truncate(folder / "d", 0),
    lambda: (folder / "b").chmod(0),
    lambda: (folder / "new").touch(),
    lambda: (folder / "c").resolve().unlink(),
):
    try:
        change()
    except OSError as error:
        print(f"refused: {error.strerror}", flush=True)
"""


@pytest.mark.parametrize("access", ["ro", "rw"])
def test_all_hosts_see_the_folder_of_a_file_system_itself(tmp_path: Path, shards: Path, access: str) -> None:
    words = ("--hosts", "2", "--channel", f"train={shards}:FileSystem:{access}")
    with ToolkitRun(tmp_path, "writes_to_channel.py", *words) as job:
        assert job.end() == 0, job.console

    written = {f"from-algo-{number}" for number in (1, 2)} & {path.name for path in shards.iterdir()}
    if access == "rw":
        assert written == {"from-algo-1", "from-algo-2"}
    elif "hosts cannot have an /opt/ml of their own" not in job.console:
        assert written == set()
        assert job.console.count("refused: Read-only file system\n") == 2
    document = json.loads((job.folder / "hosts/algo-2/opt/ml/input/config/inputdataconfig.json").read_text())
    assert document["train"] == {
        "TrainingInputMode": "File",
        "S3DistributionType": "FullyReplicated",
        "RecordWrapperType": "None",
    }
    assert {path.name for path in shards.iterdir()} - written == {"a", "b", "c"}
    assert not list((job.folder / "hosts").glob("*/opt/ml/input/data/train/*"))


def test_a_fast_file_channel_cannot_be_changed_not_even_by_root(tmp_path: Path, shards: Path) -> None:
    (shards / "d").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").write_text("d")
    (tmp_path / "code").mkdir()
    (tmp_path / "code/changes.py").write_text(CHANGES)

    with ToolkitRun(tmp_path, str(tmp_path / "code/changes.py"), "--channel", f"train={shards}:FastFile") as job:
        assert job.end() == 0, job.console

    if "hosts cannot have an /opt/ml of their own" not in job.console:
        assert job.console.count("refused: Read-only file system\n") == 5
        assert {path.name: path.read_text() for path in shards.iterdir()} == {name: name for name in "abcd"}
        assert (shards / "a").stat().st_mode & 0o777 != 0


def test_requirements_are_installed_beside_and_never_into_the_persons_python(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "brought_along-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("brought_along.py", "")
        wheel.writestr("brought_along-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: brought-along\nVersion: 1\n")
        wheel.writestr(
            "brought_along-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr("brought_along-1.dist-info/RECORD", "")
    (tmp_path / "r.txt").write_text(f"{tmp_path}/brought_along-1-py3-none-any.whl\n")
    with ToolkitRun(
        tmp_path, "counts_to.py", "--requirements", str(tmp_path / "r.txt"), "--hyperparameter", "steps=1"
    ) as job:
        assert job.end() == 0

    assert len(list(job.folder.glob("hosts/algo-1/python/lib/*/site-packages/brought_along.py"))) == 1
    assert importlib.util.find_spec("brought_along") is None


def test_requirements_that_cannot_be_installed_are_the_reason(tmp_path: Path) -> None:
    (tmp_path / "r.txt").write_text("missing-on-purpose @ file:///nowhere/at/all\n")
    with ToolkitRun(tmp_path, "counts_to.py", "--requirements", str(tmp_path / "r.txt")) as job:
        assert job.end() == 1

    assert job.report["failure_reason"].startswith("AlgorithmError: InstallRequirementsError:")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--hosts", "2", "--kill", "algo-9@1s"), "--kill: expected HOST@TIME"),
        (("--channel", "train=/nowhere"), "expected a file or folder for channel train"),
        (("--channel", "train=/dev/zero"), "expected a file or folder for channel train, found a device"),
        (("--hyperparameter", "epochs"), "expected NAME=VALUE"),
        (("--hyperparameter", "ab=1", "--", "--ab", "2"), "expected each hyperparameter once, found ab twice"),
        (("--metric", "loss=("), "--metric: metric 'loss': expected a regular expression"),
        (("--env", "TOOLKIT_GRACE_S=soon"), "TOOLKIT_GRACE_S: expected seconds"),
        (("--env", "TOOLKIT_METRICS=/nowhere"), "TOOLKIT_METRICS names it"),
        (("--distribution", "mpi", "--hyperparameter", 'mp_parameters={"partitions": "x"}'), "partitions"),
    ],
)
def test_a_job_that_cannot_start_ends_with_78_and_says_why(
    tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    (tmp_path / "job").mkdir()
    (tmp_path / "job/.toolkit-job").touch()
    (tmp_path / "job/model.tar.gz").write_text("an earlier job's")
    with ToolkitRun(tmp_path, "counts_to.py", "--replace", *words) as job:
        assert job.end() == 78

    assert (tmp_path / "job/model.tar.gz").read_text() == "an earlier job's"
    assert message in job.console
    assert "Traceback" not in job.console


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (125, "docker: Error response from daemon: pull access denied for mine"),
        (127, 'docker: Error response from daemon: exec: "train": executable file not found in $PATH'),
    ],
)
def test_a_container_that_the_engine_does_not_start_is_told_in_its_words_and_ends_with_78(
    tmp_path: Path, code: int, message: str
) -> None:
    """The engine is a fake that refuses, with the messages of docker 29."""
    engine = tmp_path / "bin/docker"
    engine.parent.mkdir()
    engine.write_text(
        f"#!/bin/sh\n[ \"$1\" = run ] || exit 0\necho '{message}' >&2\n"
        f"printf \"\\nRun 'docker run --help' for more information\\n\" >&2\nexit {code}\n"
    )
    engine.chmod(0o755)
    words = ("--backend", "docker", "--image", "mine:1", "--quiet")

    with ToolkitRun(tmp_path, "counts_to.py", *words, PATH=f"{tmp_path}/bin:{os.environ['PATH']}") as job:
        assert job.end() == 78, job.console

    assert f"the container was not started: {message}" in job.console
    assert job.report["failure_reason"] == f"ClientError: the container was not started: {message}"
