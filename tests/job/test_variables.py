"""SM_* beyond what the goldens of tests/train/platforms/sagemaker show, and what of an environment fits a process."""

import errno
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.job.channel import Channel
from toolkit.job.cluster import Cluster, Group
from toolkit.job.job import Folders, Job
from toolkit.job.machine import Machine
from toolkit.job.spec import JobSpec, PlatformValues
from toolkit.job.strategy import Strategy
from toolkit.job.variables import SPARE_BYTES, fitting, shared_names, variables
from toolkit.settings import Settings

ML = Path("/opt/ml")


def a_job(**changes: Any) -> Job:
    """A job on one host, with *changes*."""
    in_spec = {name: changes.pop(name) for name in JobSpec.__struct_fields__ if name in changes}
    plain: dict[str, Any] = {
        "spec": JobSpec(**{"name": "digits", **in_spec}),
        "settings": Settings(),
        "cluster": Cluster(current="a", hosts=("a",), taking_part=()),
        "machine": Machine(cpus=2, cpus_total=8, memory_bytes=1),
        "folders": Folders(
            base=ML,
            config=ML / "input/config",
            code=ML / "code",
            data=ML / "input/data",
            model=ML / "model",
            output=ML / "output",
            output_data=ML / "output/data",
            intermediate=ML / "output/intermediate",
            checkpoints=ML / "checkpoints",
            scratch=Path("/tmp/toolkit"),
        ),
        "strategy": Strategy(),
        "environ": {},
        "interpreter": "python",
    }
    return Job(**plain | changes)


def test_dashes_and_dots_have_a_name_that_a_shell_can_say() -> None:
    environ = variables(a_job(hyperparameters={"learning-rate": 0.1, "adam.eps": 1e-8}), ())

    assert environ["SM_HP_LEARNING-RATE"] == environ["SM_HP_LEARNING_RATE"] == "0.1"
    assert environ["SM_HP_ADAM.EPS"] == environ["SM_HP_ADAM_EPS"] == "1e-08"


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["train", "test"], []),
        (["lr", "LR"], ["'lr' and 'LR' share the variable SM_HP_LR, which holds that of 'LR'"]),
        (["LR", "lr"], ["'LR' and 'lr' share the variable SM_HP_LR, which holds that of 'lr'"]),
        (["a-b", "A-B"], ["'a-b' and 'A-B' share the variable SM_HP_A_B, which holds that of 'A-B'"]),
        (["a_b", "a-b"], ["'a_b' and 'a-b' share the variable SM_HP_A_B, which holds that of 'a_b'"]),
        (["a.b", "a-b"], ["'a.b' and 'a-b' share the variable SM_HP_A_B, which holds that of 'a-b'"]),
    ],
)
def test_names_that_share_a_variable_are_told_with_the_one_that_has_it(names: list[str], expected: list[str]) -> None:
    assert shared_names("hp", names) == expected

    environ = variables(a_job(hyperparameters={name: name for name in names}), ())
    for sentence in expected:
        variable, owner = sentence.partition("variable ")[2].split(", which holds that of ")
        assert repr(environ[variable]) == owner


def test_an_alias_never_covers_a_name_of_its_own() -> None:
    environ = variables(a_job(hyperparameters={"learning_rate": 1, "learning-rate": 2, "learning.rate": 3}), ())

    assert environ["SM_HP_LEARNING_RATE"] == "1"


def test_of_two_aliases_the_first_by_name_is_given() -> None:
    environ = variables(a_job(hyperparameters={"a.b": 1, "a-b": 2}), ())

    assert environ["SM_HP_A_B"] == "2"


def test_channels_have_aliases_too() -> None:
    channels = (Channel(name="my-data.v2", folder=ML / "input/data/my-data.v2"),)

    environ = variables(a_job(channels=channels), ())

    assert environ["SM_CHANNEL_MY-DATA.V2"] == environ["SM_CHANNEL_MY_DATA_V2"] == "/opt/ml/input/data/my-data.v2"


def test_a_name_that_no_environment_can_hold_has_its_alias_only() -> None:
    environ = variables(a_job(hyperparameters={"a=b": "x"}), ())

    assert environ["SM_HP_A_B"] == "x"
    assert not [name for name in environ if "=" in name]
    subprocess.run(["/bin/true"], env=environ, check=True)


def test_every_alias_can_be_said_in_a_shell() -> None:
    environ = variables(a_job(hyperparameters={"ünï code/é": "x"}), ())

    completed = subprocess.run(
        ["/bin/sh", "-c", "echo $SM_HP__N__CODE__"], env=environ, capture_output=True, check=True
    )

    assert completed.stdout == b"x\n"


def test_the_python_path_is_the_code_folder_and_then_the_users_own() -> None:
    environ = variables(a_job(environ={"PYTHONPATH": "/mine::/theirs"}), ())

    assert environ["PYTHONPATH"] == "/opt/ml/code:/mine:/theirs"


def test_the_job_name_is_shown_and_the_platforms_own_variables_are_given() -> None:
    environ = variables(a_job(platform_values=PlatformValues(variables={"PLATFORMS_JOB_NAME": "digits"})), ())

    assert environ["PLATFORMS_JOB_NAME"] == json.loads(environ["SM_TRAINING_ENV"])["job_name"] == "digits"


def test_the_cores_are_those_of_the_machine_not_of_the_quota() -> None:
    assert variables(a_job(), ())["SM_NUM_CPUS"] == "8"


def test_groups_are_shown_without_a_document_of_their_own() -> None:
    """Other platforms have no resourceconfig.json."""
    groups = (Group(name="g", instance_type="t", hosts=("a",)),)

    environ = variables(a_job(cluster=Cluster(current="a", hosts=("a",), taking_part=(), groups=groups)), ())

    expected = {"g": {"hosts": ["a"], "instance_group_name": "g", "instance_type": "t"}}
    assert json.loads(environ["SM_INSTANCE_GROUPS_DICT"]) == expected


def test_the_helpers_found_are_told() -> None:
    machine = Machine(cpus=1, cpus_total=1, memory_bytes=1, programs=("smddprun",))

    training_env = json.loads(variables(a_job(machine=machine), ())["SM_TRAINING_ENV"])

    assert training_env["is_smddprun_installed"] is True
    assert training_env["is_smddpmprun_installed"] is False


def test_what_fits_stays() -> None:
    environ = {"HOME": "/root", "SM_HPS": "{}"}

    assert fitting(environ, ("python", "train.py"), total_bytes=100_000) == (environ, {})


def test_a_single_string_that_is_too_long_is_spilled() -> None:
    longest = "x" * (131_072 - len("SM_A=") - 1)
    environ = {"SM_A": longest, "SM_B": longest + "x", "C": "c"}

    passed, spilled = fitting(environ, (), total_bytes=2_000_000)

    assert spilled == {"SM_B": longest + "x"}
    subprocess.run(["/bin/true"], env=passed, check=True)
    with pytest.raises(OSError, match="too long"):
        subprocess.run(["/bin/true"], env=environ, check=True)


def test_the_largest_go_first_and_the_hyperparameters_last_and_the_users_stay() -> None:
    environ = {"SM_HPS": "h" * 9_000, "SM_TRAINING_ENV": "t" * 20_000, "SM_HP_A": "a" * 100, "OWN": "o" * 30_000}

    order = []
    for total_bytes in range(75_000, 30_000, -50):
        for name in fitting(environ, (), total_bytes=total_bytes)[1]:
            if name not in order:
                order.append(name)

    assert order == ["SM_TRAINING_ENV", "SM_HP_A", "SM_HPS", "OWN"]


def test_an_environment_of_megabytes_starts_a_process_with_room_for_the_file_name() -> None:
    total_bytes = os.sysconf("SC_ARG_MAX")
    environ = {f"SM_HP_{n}": "x" * 50_000 for n in range(total_bytes // 50_000 + 20)} | {"SM_HPS": "y" * 100_000}
    argv = ("/bin/true", *("z" * 1_000 for _ in range(100)))

    passed, spilled = fitting(environ, argv, total_bytes=total_bytes)

    with pytest.raises(OSError) as caught:
        subprocess.run(argv, env=environ, check=True)
    assert caught.value.errno == errno.E2BIG
    subprocess.run(argv, env=passed | {"SM_TRAINING_ENV_FILE": "/" + "f" * 4_094}, check=True)
    assert "SM_HPS" in passed
    assert len(spilled) < 25


@given(
    st.dictionaries(st.sampled_from(["SM_HPS", "SM_A", "SM_B", "SM_HP_X", "PATH", "HOME"]), st.text(max_size=2_000)),
    st.integers(0, 20_000),
    st.integers(1, 3_000),
)
def test_every_variable_is_kept_or_spilled_and_what_is_kept_fits(
    environ: dict[str, str], total_bytes: int, one_bytes: int
) -> None:
    passed, spilled = fitting(environ, ("python",), total_bytes=total_bytes, one_bytes=one_bytes)

    sizes = {name: len(f"{name}={value}".encode("utf-8", "surrogatepass")) + 1 for name, value in environ.items()}
    assert passed | spilled == environ
    assert not passed.keys() & spilled.keys()
    assert all(sizes[name] <= one_bytes for name in passed)
    assert not passed or sum(sizes[name] + 8 for name in passed) + (SPARE_BYTES if spilled else 0) <= total_bytes
