"""The environment a script is given. Numbers are those of the contract's checklist."""

import json
import os
import sys
from pathlib import Path

import pytest

from tests.train.base import SEES, TRAIN, Base

TRAINING_ENV_KEYS = set(
    """
additional_framework_parameters channel_input_dirs current_host current_instance_group current_instance_group_hosts
current_instance_type distribution_hosts distribution_instance_groups framework_module hosts hyperparameters
input_config_dir input_data_config input_dir instance_groups instance_groups_dict is_hetero is_master
is_modelparallel_enabled is_smddpmprun_installed is_smddprun_installed job_name log_level master_hostname model_dir
module_dir module_name network_interface_name num_cpus num_gpus num_neurons output_data_dir output_dir
output_intermediate_dir resource_config topology user_entry_point
""".split()  # noqa: SIM905
)


def test_every_variable_of_the_contract_is_there_with_its_bytes(base: Base) -> None:
    """Contract point 21."""
    base.hyperparameters({"epochs": "3", "sagemaker_extra": "[1, 2]"})
    base.inputs("validation", "train")
    base.program(SEES)

    done = base.train()

    root = str(base.root)
    group = '{"hosts":["algo-1"],"instance_group_name":"homogeneousCluster","instance_type":"ml.c5.xlarge"}'
    resources = (
        '{"current_group_name":"homogeneousCluster","current_host":"algo-1","current_instance_type":"ml.c5.xlarge",'
        f'"hosts":["algo-1"],"instance_groups":[{group}],"network_interface_name":"eth0","topology":null}}'
    )
    channel = '{"RecordWrapperType":"None","S3DistributionType":"FullyReplicated","TrainingInputMode":"File"}'
    expected = {
        "SM_CHANNELS": '["train","validation"]',
        "SM_CHANNEL_TRAIN": f"{root}/input/data/train",
        "SM_CHANNEL_VALIDATION": f"{root}/input/data/validation",
        "SM_CURRENT_HOST": "algo-1",
        "SM_CURRENT_INSTANCE_GROUP": "homogeneousCluster",
        "SM_CURRENT_INSTANCE_GROUP_HOSTS": '["algo-1"]',
        "SM_CURRENT_INSTANCE_TYPE": "ml.c5.xlarge",
        "SM_DISTRIBUTION_INSTANCE_GROUPS": "[]",
        "SM_FRAMEWORK_MODULE": "",
        "SM_FRAMEWORK_PARAMS": '{"sagemaker_extra":[1,2]}',
        "SM_HOSTS": '["algo-1"]',
        "SM_HPS": '{"epochs":3}',
        "SM_HP_EPOCHS": "3",
        "SM_INPUT_CONFIG_DIR": f"{root}/input/config",
        "SM_INPUT_DATA_CONFIG": f'{{"train":{channel},"validation":{channel}}}',
        "SM_INPUT_DIR": f"{root}/input",
        "SM_INSTANCE_GROUPS": '["homogeneousCluster"]',
        "SM_INSTANCE_GROUPS_DICT": f'{{"homogeneousCluster":{group}}}',
        "SM_IS_HETERO": "false",
        "SM_LOG_LEVEL": "20",
        "SM_MODEL_DIR": f"{root}/model",
        "SM_MODULE_DIR": f"{root}/code",
        "SM_MODULE_NAME": "train",
        "SM_NETWORK_INTERFACE_NAME": "eth0",
        "SM_OUTPUT_DATA_DIR": f"{root}/output/data",
        "SM_OUTPUT_DIR": f"{root}/output",
        "SM_OUTPUT_INTERMEDIATE_DIR": f"{root}/output/intermediate",
        "SM_RESOURCE_CONFIG": resources,
        "SM_USER_ARGS": '["--epochs","3"]',
        "SM_USER_ENTRY_POINT": "train.py",
    }
    assert {name: done.environ.get(name) for name in expected} == expected
    assert {"SM_NUM_CPUS", "SM_NUM_GPUS", "SM_NUM_NEURONS", "SM_TRAINING_ENV"} <= set(done.environ)


def test_sm_training_env_has_every_key(base: Base) -> None:
    """Contract point 21."""
    base.program(SEES)

    done = base.train()

    training_env = json.loads(done.environ["SM_TRAINING_ENV"])
    assert set(training_env) >= TRAINING_ENV_KEYS
    assert done.environ["SM_TRAINING_ENV"] == json.dumps(training_env, sort_keys=True, separators=(",", ":"))
    assert (training_env["is_master"], training_env["master_hostname"], training_env["job_name"]) == (
        True,
        "algo-1",
        "walk",
    )


def test_channels_are_sorted_and_each_has_a_variable(base: Base) -> None:
    """Contract point 22."""
    base.inputs("validation", "eval-2", "train")
    base.program(SEES)

    done = base.train()

    assert done.environ["SM_CHANNELS"] == '["eval-2","train","validation"]'
    assert done.environ["SM_CHANNEL_EVAL-2"] == str(base.root / "input/data/eval-2")
    assert done.environ["SM_CHANNEL_EVAL_2"] == str(base.root / "input/data/eval-2")


def test_a_pipe_channel_has_its_variable_and_its_fifos_are_left_alone(base: Base) -> None:
    """Contract points 22, 66: nobody but the script opens a FIFO."""
    base.inputs("train", mode="Pipe")
    fifo = base.root / "input/data/train_0"
    fifo.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(fifo)
    base.program(SEES)

    done = base.train()

    assert done.status == 0
    assert done.environ["SM_CHANNEL_TRAIN"] == str(base.root / "input/data/train")
    assert fifo.is_fifo()


def test_gpus_are_counted_by_asking_nvidia_smi_once(base: Base) -> None:
    """Contract point 23."""
    counter = base.folder / "asked"
    base.executable(
        "nvidia-smi", f'#!/bin/sh\necho asked >> {counter}\nfor n in 0 1 2 3; do echo "GPU $n: H (UUID: $n)"; done\n'
    )
    base.program(SEES)

    done = base.train()

    assert done.environ["SM_NUM_GPUS"] == "4"
    assert counter.read_text() == "asked\n"


def test_neuron_cores_are_counted(base: Base) -> None:
    """Contract point 23."""
    base.executable("neuron-ls", '#!/bin/sh\necho \'[{"nc_count": 2}, {"nc_count": 2}]\'\n')
    base.program(SEES)

    done = base.train()

    assert (done.environ["SM_NUM_NEURONS"], done.environ["SM_NUM_GPUS"]) == ("4", "0")


def test_a_trn2_48xlarge_has_64_neuron_cores(base: Base) -> None:
    """Contract point 23."""
    base.resources(current_instance_type="ml.trn2.48xlarge")
    base.program(SEES)

    done = base.train()

    assert done.environ["SM_NUM_NEURONS"] == "64"


def test_a_machine_without_accelerators_has_none_and_its_cpus_are_counted(base: Base) -> None:
    """Contract point 23."""
    base.program(SEES)

    done = base.train(PATH=f"{base.folder}/bin:/usr/bin:/bin")

    assert done.environ["SM_NUM_CPUS"] == str(os.cpu_count())


def test_a_topology_is_told_where_there_is_one(base: Base) -> None:
    """Contract point 24."""
    topology = [{"hostName": "algo-1", "capacityUnitId": "u"}]
    base.resources(topology=topology)
    base.program(SEES)

    done = base.train()

    assert json.loads(done.environ["SM_TOPOLOGY"]) == topology


def test_no_topology_is_no_variable(base: Base) -> None:
    """Contract point 24."""
    base.program(SEES)

    done = base.train()

    assert "SM_TOPOLOGY" not in done.environ


def test_host_job_region_and_path_are_told(base: Base) -> None:
    """Contract point 25: the code folder comes before the user's own PYTHONPATH."""
    base.hyperparameters({"sagemaker_region": '"eu-north-1"', "sagemaker_job_name": '"asked-for"'})
    base.program(SEES)

    done = base.train(PYTHONPATH="/somewhere/else")

    assert done.environ["CURRENT_HOST"] == "algo-1"
    assert done.environ["SAGEMAKER_REGION"] in ("eu-north-1", "eu-central-1")
    assert done.environ["SAGEMAKER_JOB_NAME"] == "asked-for"
    paths = done.environ["PYTHONPATH"].split(os.pathsep)
    assert str(base.code) in paths
    assert paths.index(str(base.code)) < paths.index("/somewhere/else")
    assert done.cwd == str(base.code)


def test_a_script_imports_its_neighbours_first(base: Base) -> None:
    """Contract point 25."""
    base.program("import neighbour\nneighbour.speak()\n")
    base.program("def speak(): print('from the code folder')", "neighbour.py")
    other = base.folder / "other/neighbour.py"
    other.parent.mkdir()
    other.write_text("def speak(): print('from elsewhere')")

    done = base.train(PYTHONPATH=str(other.parent))

    assert b"from the code folder\n" in done.stdout


def test_the_program_named_in_the_environment_wins(base: Base) -> None:
    """Contract point 26: and TOOLKIT_PROGRAM over SAGEMAKER_PROGRAM, which images bake in; a line says which won."""
    base.hyperparameters(program="documented.py")
    base.program("raise SystemExit('never')", "baked.py")
    base.program(SEES)

    done = base.train(SAGEMAKER_PROGRAM="baked.py", TOOLKIT_PROGRAM="train.py")

    assert done.environ["SM_USER_ENTRY_POINT"] == "train.py"
    line = "TOOLKIT_PROGRAM names the script, train.py, and wins over SAGEMAKER_PROGRAM=baked.py and sagemaker_program="
    assert line in done.log


def test_the_only_script_needs_no_name(base: Base) -> None:
    base.hyperparameters(program=None)
    base.program(SEES)

    done = base.train()

    assert done.environ["SM_USER_ENTRY_POINT"] == "train.py"
    assert f"nothing names a script: train.py is the only one in {base.code}" in done.log


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NCCL_DEBUG", "WARN"),
        ("NCCL_SOCKET_IFNAME", "ens5"),
        ("NCCL_PROTO", "LL128"),
        ("FI_PROVIDER", "tcp"),
        ("OMP_NUM_THREADS", "3"),
        ("MASTER_ADDR", "10.0.0.9"),
        ("MASTER_PORT", "12345"),
        ("PYTHONUNBUFFERED", "0"),
        ("WITH SPACE", "a b\nc"),
        ("EMPTY", ""),
    ],
)
def test_the_users_own_environment_is_never_overwritten(base: Base, name: str, value: str) -> None:
    """Contract point 27."""
    base.program(SEES)

    done = base.train({name: value})

    assert done.environ[name] == value


def test_a_plain_job_of_several_hosts_knows_its_leader(base: Base) -> None:
    """Contract point 28: MASTER_ADDR reaches the first host, MASTER_PORT is 7777."""
    base.resources(("algo-1", "algo-2"), current="algo-2")
    base.program(SEES)

    done = base.train(TOOLKIT_LINK="off", TOOLKIT_HOST_ADDRESSES="algo-1=127.0.0.1,algo-2=127.0.0.1")

    assert done.environ["MASTER_ADDR"] in ("algo-1", "127.0.0.1")
    assert done.environ["MASTER_PORT"] == "7777"
    assert json.loads(done.environ["SM_TRAINING_ENV"])["is_master"] is False


def test_children_write_unbuffered_unless_told_otherwise(base: Base) -> None:
    """Contract point 58."""
    base.program(SEES)

    done = base.train()

    assert done.environ["PYTHONUNBUFFERED"] == "1"


def test_the_toolkits_own_folders_do_not_leak_into_the_path_of_a_script(base: Base) -> None:
    """Contract point 27: of the toolkit only the hook's folder may be on a script's PYTHONPATH."""
    base.program(SEES)

    done = base.train(TOOLKIT_RANK_HOOK="off")

    package = Path(__file__).parents[2] / "toolkit"
    assert [path for path in done.environ["PYTHONPATH"].split(os.pathsep) if path.startswith(str(package))] == []


@pytest.mark.parametrize("variables", [{}, {"SM_CHECKPOINT_DIR": "/mine"}])
def test_the_checkpoint_folder_has_a_variable_unless_the_user_has_it(base: Base, variables: dict[str, str]) -> None:
    base.program("import os\nprint(os.environ['SM_CHECKPOINT_DIR'], os.path.isdir(os.environ['SM_CHECKPOINT_DIR']))\n")

    done = base.train(variables)

    assert done.stdout.decode() == ("/mine False\n" if variables else f"{base.folder / 'opt/ml/checkpoints'} True\n")


def test_a_toolkit_variable_that_is_no_setting_is_warned_of_with_the_nearest_name(base: Base) -> None:
    base.program("pass\n")

    done = base.train(
        {"TOOLKIT_STALL": "sesame", "TOOLKIT_SERVICE_HOST": "10.0.0.7", "TOOLKIT_PORT": "tcp://10.0.0.7:80"}
    )

    warned = [line for line in done.stderr.decode().splitlines() if "no settings" in line]
    assert done.status == 0
    assert warned == [
        "[toolkit] warning: ignored, as no settings have these names: TOOLKIT_STALL (Did you mean TOOLKIT_STALL_S?)."
        " docs/settings.md lists all"
    ]


@pytest.mark.parametrize("entry", ["toolkit.cli.start", "toolkit.cli.main"])
def test_where_python_has_ascii_alone_text_beyond_it_reaches_the_script(tmp_path: Path, entry: str) -> None:
    base = Base(tmp_path / "Ünïcode 中")
    base.hyperparameters({"näme": json.dumps("é中")})
    base.program(SEES)
    command = (sys.executable, "-c", f"from {entry} import train; train()")
    ascii_alone = {"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}

    done = base.train(ascii_alone, command=command if "start" in entry else TRAIN)

    assert done.status == 0, done
    assert [os.fsencode(token) for token in done.argv] == ["--näme".encode(), "é中".encode()]
    assert ascii_alone.items() <= done.environ.items()
