"""A container's habits: runs after runs, odd values, what is said. Numbers are those of the contract's checklist."""

import json
import socket

import pytest

from tests.train.base import SEES, Base


def test_the_command_is_said_exactly(base: Base) -> None:
    """Contract point 70: it could be typed in a shell."""
    base.hyperparameters({"text": "it's $HOME"})
    base.program("print('ran')\n")

    done = base.train()

    (line,) = [line for line in done.log.splitlines() if "Invoking script with the following command:" in line]
    assert line.endswith("""train.py --text 'it'"'"'s $HOME'""")


def test_what_an_earlier_run_left_is_cleared(base: Base) -> None:
    """Contract point 73: a failure, then a success, then a failure, all in one container."""
    base.program("raise ValueError('first')\n")
    assert base.train().status == 1

    base.program("print('second')\n")
    second = base.train()
    assert (second.status, second.succeeded, second.failure) == (0, True, None)

    base.program("raise ValueError('third')\n")
    third = base.train()
    assert (third.status, third.succeeded) == (1, False)
    assert third.failure is not None
    assert "third" in third.failure
    assert "first" not in third.failure


def test_a_failure_file_beside_a_success_is_kept_and_the_status_is_success(base: Base) -> None:
    """Contract point 74."""
    base.program("import os\nopen(os.environ['SM_OUTPUT_DIR'] + '/failure', 'w').write('a word of warning')\n")

    done = base.train()

    assert (done.status, done.succeeded, done.failure) == (0, True, "a word of warning")


@pytest.mark.parametrize("level", ["20", '"20"', '"INFO"', '"debug"', '"loud"', "null", "[1]", '"²"'])
def test_any_log_level_is_taken(base: Base, level: str) -> None:
    """Contract point 75: numbers and names; what is neither is no reason to fail."""
    base.hyperparameters({"sagemaker_container_log_level": level})
    base.program(SEES)

    done = base.train()

    assert done.status == 0, done
    assert done.environ["SM_LOG_LEVEL"] in ("10", "20")


@pytest.mark.parametrize("level", ["INFO", "30", "loud", ""])
def test_any_log_level_of_the_environment_is_taken(base: Base, level: str) -> None:
    """Contract point 75."""
    base.program(SEES)

    done = base.train(SAGEMAKER_CONTAINER_LOG_LEVEL=level)

    assert done.status == 0, done


def test_a_quiet_log_level_leaves_the_scripts_words_alone(base: Base) -> None:
    """Contract point 75."""
    base.hyperparameters({"sagemaker_container_log_level": "40"})
    base.program("import sys\nprint('out')\nprint('err', file=sys.stderr)\n")

    done = base.train()

    assert (done.stdout, done.stderr) == (b"out\n", b"err\n")


def test_an_interface_that_is_not_here_is_replaced_and_this_is_said(base: Base) -> None:
    """Contract point 77: NCCL and gloo get one that exists ("ethwe" is what SDK v3's local mode writes)."""
    base.resources(("algo-1", "algo-2"), network_interface_name="ethwe")
    base.program(SEES)

    done = base.train(TOOLKIT_LINK="off", TOOLKIT_HOST_ADDRESSES="algo-1=127.0.0.1,algo-2=127.0.0.1")

    assert done.status == 0, done
    interfaces = {name for _, name in socket.if_nameindex()}
    assert done.environ.get("NCCL_SOCKET_IFNAME", "lo") in interfaces
    assert done.environ.get("GLOO_SOCKET_IFNAME", "lo") in interfaces
    assert any("ethwe" in line for line in done.stderr.decode().splitlines() if line.startswith("[toolkit]"))


def test_an_environment_too_large_for_the_kernel_is_not_fatal(base: Base) -> None:
    """Contract 79: a hyperparameter of 140 kB: what does not fit is in the file that SM_TRAINING_ENV_FILE names."""
    base.hyperparameters({"big": json.dumps({"k": "x" * 140_000}), "small": "1"})
    base.program(
        "import json, os\n"
        "spilled = json.load(open(os.environ['SM_TRAINING_ENV_FILE']))\n"
        "print(len(spilled['SM_HPS']), os.environ['SM_HP_SMALL'])\n"
    )

    done = base.train(TOOLKIT_ARGUMENT_STYLE="none")

    assert done.status == 0, done
    assert int(done.stdout.split()[0]) > 140_000
    assert done.stdout.split()[1] == b"1"


def test_an_argument_too_large_for_the_kernel_is_said_with_a_way_out(base: Base) -> None:
    """Contract point 79: argv cannot be spilled; the error says which one, and what else there is."""
    base.hyperparameters({"big": "x" * 140_000})
    base.program(SEES)

    done = base.train()

    assert done.status == 78, done
    assert done.failure is not None
    assert "big" in done.failure[:1024]
    assert "TOOLKIT_ARGUMENT_STYLE" in done.failure[:1024]


def test_secrets_are_in_no_line_of_ours_and_no_file_of_ours(base: Base) -> None:
    """The script gets them; what the toolkit says and writes never shows them."""
    base.hyperparameters({"api_key": '"sk-0123456789"', "epochs": "3"})
    base.program("import sys\nassert sys.argv[2] == 'sk-0123456789'\nraise ValueError('key sk-0123456789 refused')\n")

    done = base.train(HF_TOKEN="hf_abcdefghij")

    toolkit_lines = "".join(line for line in done.log.splitlines(keepends=True) if line.startswith("[toolkit]"))
    written = "".join(path.read_text() for path in base.output.rglob("*") if path.is_file())
    assert done.status == 1
    assert "sk-0123456789" not in toolkit_lines + written
    assert "hf_abcdefghij" not in toolkit_lines + written
