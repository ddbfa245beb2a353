import json
import math
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import pytest

from toolkit.cli.run import read
from toolkit.errors import ContractError
from toolkit.job.channel import Channel, ChannelMode
from toolkit.job.cluster import Group
from toolkit.job.documents.writing import distribution_flags
from toolkit.job.file import options
from toolkit.job.file import text_formats as text
from toolkit.job.file.job_file import Interrupt, JobFile, Kill, LocalRun
from toolkit.job.strategy import Strategy

HERE = Path("/job")
DIGITS = ["--hosts", "2", "--processes-per-host", "1", "--distribution", "pytorchddp", "--hyperparameter", "epochs=5"]


def of(*argv: str, folder: Path = HERE) -> JobFile:
    """Return the JobFile of a command line, through the real parser."""
    from toolkit.cli import run
    from toolkit.cli.parser import Parser

    parser = Parser()
    run.add(parser)
    job = read(vars(parser.parse_args(argv)), folder, "now")
    assert isinstance(job, JobFile)
    return job


def test_the_command_line_of_the_readme_says_everything() -> None:
    more = ["--channel", "train=data", "--metric", "loss=loss: ([0-9.]+)", "--requirements", "r.txt", "--job-dir", "J"]

    job = of("vit/train.py", *DIGITS, *more)

    assert job == JobFile(
        name="train-now",
        entry="train.py",
        processes_per_host=1,
        strategy=Strategy(name="pytorchddp"),
        hyperparameters={"epochs": 5},
        hyperparameter_places={"epochs": "toolkit run: --hyperparameter epochs"},
        channels=(Channel(name="train", folder=Path("/job/data")),),
        metric_definitions=(("loss", "loss: ([0-9.]+)"),),
        source=Path("/job/vit"),
        groups=(Group(name="homogeneousCluster", hosts=("algo-1", "algo-2"), instance_type="local"),),
        requirements=Path("/job/r.txt"),
        request={
            "script": "/job/vit/train.py",
            "job-dir": "/job/J",
            "hosts": 2,
            "processes-per-host": 1,
            "distribution": "pytorchddp",
            "hyperparameter": {"epochs": 5},
            "channel": {"train": "/job/data"},
            "metric": {"loss": "loss: ([0-9.]+)"},
            "requirements": "/job/r.txt",
        },
        run=LocalRun(job_dir=Path("/job/J")),
    )


def test_a_job_goes_to_jobs_under_its_name_unless_told() -> None:
    assert of("train.py", "--name", "first").run.job_dir == Path("/job/jobs/first")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5", 5),
        ("1e-3", 0.001),
        ("0.5", 0.5),
        ("5e4", 50000.0),
        ("1.10", "1.10"),
        ("12e4567", "12e4567"),
        ("12345678901234567890.5", "12345678901234567890.5"),
        ("12345678901234567890", 12345678901234567890),
        ("-0", "-0"),
        ("0.10000000000000001", "0.10000000000000001"),
        ("NaN", "NaN"),
        ("[1.10]", [1.1]),
        ("true", True),
        ("null", None),
        ('[1, "a"]', [1, "a"]),
        ("adam", "adam"),
        ("a=b", "a=b"),
        ('"5"', "5"),
        ("", ""),
    ],
)
def test_a_hyperparameter_is_json_if_it_is_json(text: str, value: Any) -> None:
    assert of("train.py", "--hyperparameter", f"k={text}").hyperparameters == {"k": value}


@pytest.mark.parametrize(
    ("text", "path", "mode", "sharded"),
    [
        ("data", "/job/data", "File", False),
        ("/abs:FastFile", "/abs", "FastFile", False),
        ("data:Pipe", "/job/data", "Pipe", False),
        ("data:ShardedByS3Key", "/job/data", "File", True),
        ("data:FastFile:ShardedByS3Key", "/job/data", "FastFile", True),
        ("data:ShardedByS3Key:Pipe", "/job/data", "Pipe", True),
        ("odd:name", "/job/odd:name", "File", False),
    ],
)
def test_a_channel_is_a_path_and_how_it_is_given(text: str, path: str, mode: ChannelMode, sharded: bool) -> None:
    job = of("train.py", "--channel", f"train={text}")

    assert job.channels == (Channel(name="train", folder=Path(path), mode=mode, sharded=sharded),)


@pytest.mark.parametrize(
    ("text", "access"),
    [("/mnt/fsx:FileSystem", "ro"), ("/mnt/fsx:FileSystem:ro", "ro"), ("/mnt/fsx:FileSystem:rw", "rw")],
)
def test_a_channel_may_be_a_folder_that_all_hosts_share(text: str, access: Literal["ro", "rw"]) -> None:
    job = of("train.py", "--channel", f"train={text}")

    assert job.channels == (Channel(name="train", folder=Path("/mnt/fsx"), file_system=access),)


@pytest.mark.parametrize(
    ("text", "expected"), [("30s", 30.0), ("10m", 600.0), ("1.5h", 5400.0), ("250ms", 0.25), ("7", 7.0)]
)
def test_times_have_units(text: str, expected: float) -> None:
    job = of("train.py", "--stop-after", text, "--max-run", text, "--kill", f"algo-1@{text}")

    assert (job.run.stop_after_s, job.run.max_run_s) == (expected, expected)
    assert job.run.kills == (Kill(host="algo-1", after_s=expected),)


def test_interruptions_are_in_the_order_of_their_times() -> None:
    job = of("train.py", "--interrupt", "10m+1m", "--interrupt", "5s", "--max-wait", "1h")

    assert job.run.interrupts == (Interrupt(after_s=5.0), Interrupt(after_s=600.0, wait_s=60.0))
    assert job.run.max_wait_s == 3600.0


@pytest.mark.parametrize(
    ("text", "expected"), [("512m", 512 << 20), ("2g", 2 << 30), ("1.5GiB", 3 << 29), ("64 KB", 64 << 10), ("7", 7)]
)
def test_sizes_have_units(text: str, expected: int) -> None:
    job = of("train.py", "--backend", "docker", "--image", "mine:1", "--memory", text, "--shm-size", text)

    assert (job.run.backend, job.run.image) == ("docker", "mine:1")
    assert (job.run.memory_bytes, job.run.shm_bytes) == (expected, expected)


def test_hosts_are_listed_by_the_alphabet_as_the_platform_does() -> None:
    assert of("train.py", "--hosts", "11").hosts[:4] == ("algo-1", "algo-10", "algo-11", "algo-2")


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--hyperparameter", "epochs"], ["--hyperparameter", "NAME=VALUE", "'epochs'"]),
        (["--hyperparameter", "=5"], ["NAME=VALUE", "'=5'"]),
        (["--distribution", "ddpp"], ["toolkit run: --distribution: ", "pytorchddp", "'ddpp'", "Did you mean ddp?"]),
        (["--distribution", "deepspeed"], ["found 'deepspeed'", "runs under torch_distributed"]),
        (["--distribution", "accelerate"], ["found 'accelerate'", "as after `accelerate launch`"]),
        (["--distribution", "FSDP"], ["found 'FSDP'", "runs under torch_distributed"]),
        (
            ["--distribution", '{"torch_distributed": {"enabled": tru}}'],
            ["toolkit run: --distribution: expected a dictionary as JSON or as Python", "column 35", "For example"],
        ),
        (["--metric", "loss=("], ["toolkit run: --metric: metric 'loss': expected a regular expression"]),
        (["--distribution", '{"ddp": {}}'], ["toolkit run: --distribution: ", "pytorchddp", "'ddp'"]),
        (["--stop-after", "soon"], ["toolkit run: --stop-after: ", "30s", "'soon'"]),
        (["--checkpoints", "j", "--job-dir", "j"], ["toolkit run: --checkpoints: expected a folder beside the job's"]),
        (
            ["--channel", "a=/m:Pipe:FastFile"],
            [
                "toolkit run: --channel: expected PATH:MODE with one mode",
                "found '/m:Pipe:FastFile' with Pipe and FastFile",
            ],
        ),
        (
            ["--channel", "a=/m:FileSystem:Pipe"],
            ["toolkit run: --channel: expected PATH:FileSystem", "and no mode, found '/m:FileSystem:Pipe'"],
        ),
        (["--channel", "a=/m:ro"], ["toolkit run: --channel: expected PATH:FileSystem", "'/m:ro'"]),
        (["--channel", "a=s3://b/k:FileSystem"], ["expected a folder of this machine, found 's3://b/k'"]),
        (["--interrupt", "soon"], ["toolkit run: --interrupt: expected TIME or TIME+WAIT", "10m+1m", "'soon'"]),
        (["--interrupt", "5s+"], ["toolkit run: --interrupt: expected TIME or TIME+WAIT", "'5s+'"]),
        (["--interrupt", "60s", "--interrupt", "1m"], ["--interrupt: expected different times, found 60 s twice"]),
        (["--max-wait", "0"], ["toolkit run: --max-wait: expected a time above 0"]),
        (["--max-wait", "1m", "--max-run", "2m"], ["--max-wait: expected no less than max-run, 2m, found 1m"]),
        (["--kill", "algo-1"], ["toolkit run: --kill: expected HOST@TIME", "'algo-1'"]),
        (["--kill", "algo-1@"], ["toolkit run: --kill: expected HOST@TIME", "'algo-1@'"]),
        (["--kill", "algo-3@5s"], ["toolkit run: --kill: ", "algo-1", "'algo-3@5s'"]),
        (["--hosts", "0"], ["toolkit run: --hosts: expected a whole number from 1 to 1,000,000, found 0"]),
        (["--hosts", "9999999"], ["toolkit run: --hosts: expected a whole number from 1 to 1,000,000, found 9999999"]),
        (["--processes-per-host", "-1"], ["toolkit run: --processes-per-host: ", "from 1 to 1,000,000, found -1"]),
        (["--max-run", "0"], ["toolkit run: --max-run: expected a time above 0, such as 30s, 10m or 1.5h, found '0'"]),
        (["--max-run", "0.0h"], ["toolkit run: --max-run: expected a time above 0", "'0.0h'"]),
        (["--max-run", "-5"], ["toolkit run: --max-run: expected a time above 0", "'-5'"]),
        (["--channel", "train"], ["toolkit run: --channel: expected NAME=PATH[:MODE], found 'train'"]),
        (
            ["--channel", "a=d", "--channel", "a=e"],
            ["toolkit run: --channel: expected each channel once, found a twice"],
        ),
        (["--metric", "a=(.)", "--metric", "a=x(.)"], ["toolkit run: --metric: expected each metric once, found a"]),
        (["--metric", "loss"], ["toolkit run: --metric: expected NAME=REGEX, found 'loss'"]),
        (["--env", "A"], ["toolkit run: --env: expected NAME=VALUE, found 'A'"]),
        (["--channel", "train=git://bucket/x"], ["begins with s3://, gs:// or az://, found 'git://bucket/x'"]),
        (["--channel", "train=file:///x"], ["--channel: expected a path of this machine, or", "'file:///x'"]),
        (["--checkpoints", "s3://b/c"], ["--checkpoints: expected a path of this machine, found 's3://b/c'"]),
        (["--source", "git://b/c"], ["--source: expected a path of this machine, found 'git://b/c'"]),
        (["--memory", "2 gallons"], ["toolkit run: --memory: ", "512m", "'2 gallons'"]),
        (["--shm-size", "0"], ["toolkit run: --shm-size: ", "'0'"]),
        (["--backend", "podman"], ["toolkit run: --backend: ", "'podman'"]),
        (["--name", "a b"], ["toolkit run: --name: ", "'a b'"]),
        (["--name", ""], ["toolkit run: --name: ", "''"]),
        (["--channel", "a/b=data"], ["toolkit run: --channel: ", "'a/b'"]),
        (["--channel", "train="], ["toolkit run: --channel: train: expected a path, found ''"]),
        (["--channel", "train=:Pipe"], ["toolkit run: --channel: train: expected a path, found ':Pipe'"]),
        (["--checkpoints", ""], ["toolkit run: --checkpoints: expected a path, found ''"]),
        (["--job-dir", ""], ["toolkit run: --job-dir: expected a path, found ''"]),
        (["--channel", "..=data"], ["toolkit run: --channel: ", "'..'"]),
        (["--source", "elsewhere"], ["toolkit run: SCRIPT: ", "/job/elsewhere", "/abs/train.py"]),
    ],
)
def test_a_wrong_word_is_named_with_what_was_expected_and_found(argv: list[str], words: list[str]) -> None:
    with pytest.raises(ContractError) as raised:
        of("/abs/train.py", *argv)

    assert [word for word in words if word not in str(raised.value)] == []


def test_a_script_is_looked_for_in_the_source_folder_too() -> None:
    beside = of("src/train.py", "--source", "src")
    within = of("train.py", "--source", "src")
    deeper = of("pkg/train.py", "--source", "src")

    assert beside.script == within.script == Path("/job/src/train.py")
    assert (deeper.source, deeper.entry) == (Path("/job/src"), "pkg/train.py")


JOB = """
script = "train.py"
name = "digits"
processes_per_host = 1
hosts = 2
stop-after = "30s"
kill = "algo-2@5s"
interrupt = ["10s", 20, "30s+5s"]
max-wait = 90
[distribution.torch_distributed]
enabled = true
[hyperparameter]
epochs = 5
optimizer = "5"
[channel]
train = "../data:Pipe"
[channel.test]
path = "held"
mode = "FastFile"
distribution = "ShardedByS3Key"
[channel.shared]
path = "/mnt/fsx"
file-system = "rw"
[metric]
loss = 'loss=([0-9.]+)'
[env]
DEBUG = true
LEVEL = 3
"""
TOML = pytest.mark.skipif(sys.version_info < (3, 11), reason="tomllib came with Python 3.11")


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    path = tmp_path / "job.toml"
    path.write_text(JOB)
    return path


@TOML
def test_dates_and_times_of_toml_are_text_as_in_yaml(tmp_path: Path) -> None:
    lines = "script = 't.py'\n[hyperparameter]\nh = 12e4567\n"
    lines += "d = 1979-05-27\nt = 07:32:00\nl = [{x = 1979-05-27T07:32:00Z}]\n"
    (tmp_path / "job.toml").write_text(lines)

    job = of(str(tmp_path / "job.toml"))

    assert job.hyperparameters == {
        "h": "12e4567",
        "d": "1979-05-27",
        "t": "07:32:00",
        "l": [{"x": "1979-05-27T07:32:00+00:00"}],
    }
    assert json.dumps(job.hyperparameters)


@TOML
def test_a_job_file_says_the_same_words_and_its_paths_start_from_it(job_file: Path) -> None:
    job = of(str(job_file))

    folder = job_file.parent
    assert (job.script, job.source) == (folder / "train.py", folder)
    assert job.run.job_dir == Path("/job/jobs/digits")
    assert job.strategy == Strategy(name="torch_distributed")
    assert job.hyperparameters == {"epochs": 5, "optimizer": "5"}
    assert job.channels == (
        Channel(name="train", folder=folder.parent / "data", mode="Pipe"),
        Channel(name="test", folder=folder / "held", mode="FastFile", sharded=True),
        Channel(name="shared", folder=Path("/mnt/fsx"), file_system="rw"),
    )
    assert job.environment == {"DEBUG": "true", "LEVEL": "3"}
    assert (job.run.stop_after_s, job.run.kills) == (30.0, (Kill(host="algo-2", after_s=5.0),))
    assert [(interrupt.after_s, interrupt.wait_s) for interrupt in job.run.interrupts] == [
        (10.0, 0.0),
        (20.0, 0.0),
        (30.0, 5.0),
    ]
    assert job.run.max_wait_s == 90.0


@TOML
def test_arguments_beside_a_job_file_win_and_add(job_file: Path) -> None:
    job = of(
        str(job_file), "--hosts", "3", "--hyperparameter", "epochs=1", "--hyperparameter", "dim=8", "--job-dir", "J"
    )

    assert len(job.hosts) == 3
    assert job.hyperparameters == {"epochs": 1, "optimizer": "5", "dim": 8}
    assert job.run.job_dir == Path("/job/J")


@TOML
def test_toml_and_json_say_the_same(job_file: Path, tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text(json.dumps(import_module("tomllib").loads(JOB)))

    text = repr(of(str(tmp_path / "job.json")))

    assert text.replace("job.json", "job.toml") == repr(of(str(job_file)))


YAML_JOB = """\
# As people write it.
script: train.py
hosts: 2
distribution: {torch_distributed: {enabled: true}}
hyperparameter:
  lr: 3e-4
  warmup: 1_000
  mode: on
  time: 12:30
  zeros: 010
  off: ~
  sha: 12e4567
  least: -.inf
  layers: [1, .5, 1.5e+3]
metric:
  loss: 'loss=([0-9.]+)'
instance_groups:
- {name: a, hosts: 2, instance_type: ml.g5.xlarge}
"""


@pytest.mark.parametrize("suffix", [".yaml", ".yml"])
def test_a_yaml_job_file_says_the_same_with_yaml_1_2_values(tmp_path: Path, suffix: str) -> None:
    (tmp_path / f"job{suffix}").write_text(YAML_JOB)

    job = of(str(tmp_path / f"job{suffix}"))

    assert (job.script, job.hosts) == (tmp_path / "train.py", ("algo-1", "algo-2"))
    assert job.strategy == Strategy(name="torch_distributed")
    assert job.hyperparameters == {
        "lr": 0.0003,
        "warmup": "1_000",
        "mode": "on",
        "time": "12:30",
        "zeros": 10,
        "off": None,
        "sha": "12e4567",
        "least": -math.inf,
        "layers": [1, 0.5, 1500.0],
    }
    assert job.metric_definitions == (("loss", "loss=([0-9.]+)"),)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("script: [", ["job.yaml", "expected YAML, found a mistake", "line 1"]),
        ("- script", ["job.yaml", "a table", "list"]),
        ("script: t.py\nhosts: 2\nhosts: 3", ["job.yaml: expected YAML", "the key hosts twice", "line 3"]),
        ("script: t.py\nhost: 2", ["job.yaml: $.host", "Did you mean hosts?"]),
        ("script: t.py\n1: 2", ["job.yaml: $.1: expected a name that is text, found int. Put it in quotes."]),
        ("hyperparameter: {a: {1: x}}", ["job.yaml: $.hyperparameter.a.1"]),
        ("hyperparameter: {null: x}", ["job.yaml: $.hyperparameter.None", "found NoneType"]),
        ("hyperparameter: {a: [1, !!binary aGk=]}", ["job.yaml: $.hyperparameter.a[1]: expected text", "found bytes"]),
        ("hyperparameter: {a: !!set {x}}", ["job.yaml: $.hyperparameter.a", "found set"]),
        ("hyperparameter: &a {x: [*a]}", ["job.yaml: $.hyperparameter.x[0]", "alias of the object that contains it"]),
        ("a: !!python/object/apply:os.system [ls]", ["job.yaml", "expected YAML"]),
        ("a: b\n---\nc: d", ["job.yaml", "expected YAML"]),
        (
            "\n".join(f"x{index}: &a{index} [{f'*a{index - 1}, ' * 9 * (index > 0)}1]" for index in range(20)),
            ["at most 1,000,000"],
        ),
    ],
)
def test_a_wrong_yaml_file_is_named(tmp_path: Path, content: str, words: list[str]) -> None:
    (tmp_path / "job.yaml").write_text(content)

    with pytest.raises(ContractError) as raised:
        of(str(tmp_path / "job.yaml"))

    assert [word for word in words if word not in str(raised.value)] == []


def test_an_alias_that_repeats_a_value_is_that_value(tmp_path: Path) -> None:
    text = "script: t.py\nhyperparameter: {a: &a {x: 1}, b: *a, c: [*a, *a], d: !!timestamp 1979-05-27}"
    (tmp_path / "job.yaml").write_text(text)
    x = {"x": 1}

    assert of(str(tmp_path / "job.yaml")).hyperparameters == {"a": x, "b": x, "c": [x, x], "d": "1979-05-27"}


@pytest.mark.parametrize(
    ("installed", "name", "hint"),
    [
        ((), "job.toml", "Install it (pip install tomli), or write the same in a .json file."),
        (("yaml",), "job.toml", "Install it (pip install tomli), or write the same in a .json or .yaml file."),
        ((), "job.yaml", "[render]'), or write the same in a .json file."),
        (("tomli",), "job.yaml", "[render]'), or write the same in a .json or .toml file."),
        (("tomllib",), "job.yml", "[render]'), or write the same in a .json or .toml file."),
    ],
)
def test_a_file_that_this_python_cannot_read_names_only_formats_that_it_can(
    monkeypatch: pytest.MonkeyPatch, installed: tuple[str, ...], name: str, hint: str
) -> None:
    def import_fake(name: str) -> object:
        if name not in installed:
            raise ImportError(name)
        return object()

    monkeypatch.setattr(text, "import_module", import_fake)

    with pytest.raises(ContractError) as caught:
        options.from_file("", Path(name))

    assert caught.value.hint.endswith(hint)


def test_of_several_distributions_the_first_is_used_and_the_others_are_kept_for_the_warning_of_train() -> None:
    several = {"torch_distributed": {"enabled": True}, "mpi": {"enabled": True}, "horovod": {"enabled": False}}

    job = of("t.py", "--distribution", json.dumps(several))

    assert (job.strategy.name, job.strategy.ignored) == ("mpi", ("torch_distributed",))
    flags = {name for name, value in distribution_flags(job).items() if name.endswith("_enabled") and value}
    assert flags == {"sagemaker_mpi_enabled", "sagemaker_torch_distributed_enabled"}


@pytest.mark.parametrize(
    "text",
    [
        "{'torch_distributed': {'enabled': True}}",
        ' {"torch_distributed": {"enabled": true}} ',
        "{'torch_distributed': {'enabled': True,},}",
    ],
)
def test_a_distribution_may_be_the_sdks_dictionary_as_python_writes_it(text: str) -> None:
    assert of("t.py", "--distribution", text).strategy.name == "torch_distributed"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1.10", "hyperparameter k=1.10 stays text: as a number it would be 1.1"),
        ("12e4567", "stays text: as a number it would be inf"),
        ("1234e5", "is the number 123400000.0; as text: --hyperparameter 'k=\"1234e5\"'"),
        ("007", "stays text: as a number it would be 7.0"),
        ("1.2.3", ""),
        ("1e-3", ""),
        ("adam", ""),
        ("5", ""),
        ("0.5", ""),
    ],
)
def test_a_number_that_is_another_as_text_is_said(text: str, message: str) -> None:
    note = options.number_note("k", text)

    assert message in note if message else not note


def test_distributions_have_the_names_that_torch_gives_them() -> None:
    for alias, name in (
        ("torchrun", "torch_distributed"),
        ("ddp", "pytorchddp"),
        ("Torch-Distributed", "torch_distributed"),
    ):
        assert of("t.py", "--distribution", alias).strategy.name == name


def test_a_json_job_file_needs_no_toml(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text('{"script": "train.py", "distribution": {"mpi": {"enabled": true}}}')

    assert of(str(tmp_path / "job.json")).strategy.name == "mpi"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"script": ', ["job.json", "expected JSON"]),
        ("[]", ["job.json", "a table", "list"]),
        ('{"script": "t.py", "env": {"A": "1", "A": "2"}}', ["job.json: expected each key once, found A twice"]),
        ('{"hosts": 2}', ["job.json", "$.script"]),
        ('{"script": "t.py", "hyperparameters": {}}', ["$.hyperparameters", "Did you mean hyperparameter?"]),
        ('{"script": "t.py", "hosts": "2"}', ["$.hosts: expected a whole number, found a text"]),
        ('{"script": ["t.py"]}', ["$.script: expected a text, found a list"]),
        ('{"script": "t.py", "metric": {"loss": 3}}', ["$.metric.loss: expected a text, found a whole number"]),
        (
            '{"script": "t.py", "channel": {"a": {"pth": "d"}}}',
            ["$.channel.a: expected the keys path, mode, distribution, file-system, found 'pth'. Did you mean path?"],
        ),
        (
            '{"script": "t.py", "channel": {"a": {"path": "d", "mode": "file"}}}',
            ["$.channel.a.mode: expected one of File, FastFile, Pipe, found 'file'. Did you mean File?"],
        ),
        (
            '{"script": "t.py", "channel": {"a": {"path": "d", "distribution": "Sharded"}}}',
            ["$.channel.a.distribution: expected one of FullyReplicated, ShardedByS3Key, found 'Sharded'. Did you"],
        ),
        ('{"script": "t.py", "instance_groups": [{"name": "a", "hosts": 0}]}', ["[0].hosts: ", "found 0"]),
        ('{"script": "t.py", "max-run": 0}', ["$.max-run: expected a time above 0", "found 0"]),
        ('{"script": "t.py", "stop-after": -1.5}', ["$.stop-after: expected a time such as", "found -1.5"]),
        ('{"script": "t.py", "instance_groups": [{"name": "a"}]}', ["$.instance-groups[0]", "hosts"]),
        ('{"script": "t.py", "hosts": 3, "instance_groups": [{"name": "a", "hosts": 2}]}', ["$.hosts", "2", "3"]),
        (
            '{"script": "t.py", "distribution": {"smdistributed": {"modelparallel": {"enabled": true}}}}',
            ["distribution.smdistributed", "expected mpi or torch_distributed beside modelparallel", "found none"],
        ),
        (
            '{"script": "t.py", "distribution": {"mpi": {"enabled": true}, "smdistributed": '
            '{"modelparallel": {"enabled": true}, "dataparallel": {"enabled": true}}}}',
            ["distribution.smdistributed", "expected modelparallel or dataparallel, found both enabled"],
        ),
        ('{"script": "t.py", "distribution": {"instance_groups": ["b"]}}', ["homogeneousCluster", "'b'"]),
    ],
)
def test_a_wrong_job_file_is_named_with_its_key(tmp_path: Path, content: str, words: list[str]) -> None:
    (tmp_path / "job.json").write_text(content)

    with pytest.raises(ContractError) as raised:
        of(str(tmp_path / "job.json"))

    assert [word for word in words if word not in str(raised.value)] == []


def test_instance_groups_share_one_count_of_hosts(tmp_path: Path) -> None:
    groups = [{"name": "cpu", "hosts": 1, "instance_type": "ml.c5.xlarge"}, {"name": "gpu", "hosts": 2}]
    (tmp_path / "job.json").write_text(json.dumps({"script": "t.py", "instance_groups": groups}))

    job = of(str(tmp_path / "job.json"))

    assert [(group.name, group.hosts, group.instance_type) for group in job.groups] == [
        ("cpu", ("algo-1",), "ml.c5.xlarge"),
        ("gpu", ("algo-2", "algo-3"), "local"),
    ]


@pytest.mark.parametrize(
    ("keys", "argv", "expected"),
    [
        ("", [], None),
        ("", ["--disable-profiler"], False),
        ("monitor = true", [], True),
        ("monitor = true", ["--disable-profiler"], False),
        ("disable_profiler = true", [], False),
        ("disable-profiler = false", [], True),
        ("disable-profiler = true\nmonitor = false", [], False),
    ],
)
def test_a_job_says_whether_it_wants_the_monitor(
    tmp_path: Path, keys: str, argv: list[str], expected: bool | None
) -> None:
    file = tmp_path / "job.toml"
    file.write_text(f'script = "train.py"\n{keys}')

    assert of(str(file), *argv).monitor is expected


def test_a_job_that_wants_the_monitor_and_disables_it_is_wrong(tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text('script = "train.py"\nmonitor = true\ndisable-profiler = true')

    with pytest.raises(ContractError, match=r"\$\.monitor: expected false, as disable-profiler says, found true"):
        of(str(file))


def test_a_wrong_channel_is_named_with_the_file_or_the_option_that_holds_it(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text('script = "train.py"\n[channel]\ntrain = "data:File:Pipe"\n')

    with pytest.raises(ContractError) as in_file:
        of("job.toml", "--channel", "other=data", folder=tmp_path)
    with pytest.raises(ContractError) as in_option:
        of("job.toml", "--channel", "train=data:File:FastFile", folder=tmp_path)

    assert in_file.value.where == f"{tmp_path}/job.toml: $.channel"
    assert in_option.value.where == "toolkit run: --channel"


@pytest.mark.parametrize(
    ("rules", "name"), [("code/watch/rules.toml", "watch/rules.toml"), ("rules.toml", "rules.toml"), (None, "")]
)
def test_a_document_of_rules_keeps_its_place_in_the_source(rules: str | None, name: str) -> None:
    job_file = of("code/train.py", *(("--rules", rules) if rules else ()))

    assert job_file.rules_in_source == name


def test_groups_of_one_name_are_refused(tmp_path: Path) -> None:
    groups = [{"name": "a", "hosts": 1}, {"name": "a", "hosts": 1}]
    (tmp_path / "job.json").write_text(json.dumps({"script": "t.py", "instance-groups": groups}))

    with pytest.raises(ContractError, match="expected different names, found a, a"):
        of("job.json", folder=tmp_path)


def test_a_channel_that_is_no_path_is_refused(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text(json.dumps({"script": "t.py", "channel": {"train": 7}}))

    with pytest.raises(ContractError, match=r"\$\.channel\.train: expected a text or a table, found a whole number"):
        of("job.json", folder=tmp_path)


def test_bytes_that_are_no_utf_8_are_no_toml() -> None:
    with pytest.raises(ContractError, match=r"job\.toml: expected TOML, found bytes that are not UTF-8"):
        text.parse(b"name = '\xff'", Path("job.toml"))


@TOML
def test_a_mistake_in_toml_is_named_with_its_file(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text("script = train.py")

    with pytest.raises(ContractError, match=r"job\.toml: expected TOML, found a mistake: "):
        of("job.toml", folder=tmp_path)
