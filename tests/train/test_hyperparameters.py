"""Hyperparameters: what becomes an argument, and how. Numbers are those of the contract's checklist."""

import json
from typing import Any

import pytest

from tests.train.base import SEES, Base

# JSON text in the document's string -> the argument's token, as sagemaker-training 5.1.4 writes it.
TOKENS = [
    ("true", "True"),
    ("false", "False"),
    ("null", ""),
    ('[1,"a"]', "[1, 'a']"),
    ('{"x":1,"y":"z"}', "x=1,y=z"),
    ('{"y":"z","x":1}', "x=1,y=z"),
    ("1e-5", "1e-05"),
    ("0.10", "0.1"),
    ("007", "007"),
    ("NaN", "nan"),
    ("32", "32"),
    ('"text"', "text"),
    ('"true"', "true"),
    ('""', ""),
    ("plain text", "plain text"),
    ("", ""),
    ("a b  c", "a b  c"),
    ('it\'s "quoted"', 'it\'s "quoted"'),
    ("$(touch hacked) `id` $HOME ; ls | cat & *", "$(touch hacked) `id` $HOME ; ls | cat & *"),
    ("two\nlines", "two\nlines"),
    ("-1", "-1"),
    ("--flag", "--flag"),
    ("naïve ☃", "naïve ☃"),
    ("\\n", "\\n"),
]


@pytest.mark.parametrize(("text", "token"), TOKENS)
def test_a_value_is_decoded_once_and_becomes_exactly_one_token(base: Base, text: str, token: str) -> None:
    """Contract points 13, 15, 16."""
    base.hyperparameters({"value": text})
    base.program(SEES)

    done = base.train()

    assert done.argv == ["--value", token]
    assert not (base.folder / "hacked").exists()


@pytest.mark.parametrize(
    ("value", "token"),
    [(3, "3"), (True, "True"), (None, ""), (0.5, "0.5"), ([1, "a"], "[1, 'a']"), ({"k": [1]}, "k=[1]")],
)
def test_a_value_that_is_no_string_is_kept(base: Base, value: object, token: str) -> None:
    """Contract point 13."""
    base.hyperparameters({"value": value})
    base.program(SEES)

    done = base.train()

    assert done.argv == ["--value", token]
    assert json.loads(done.environ["SM_HPS"]) == {"value": value}


RESERVED = {
    "sagemaker_submit_directory": None,
    "sagemaker_enable_cloudwatch_metrics": "false",
    "sagemaker_region": '"eu-central-1"',
    "sagemaker_container_log_level": "20",
    "sagemaker_job_name": '"walk"',
    "default_user_module_name": '"train"',
    "_tuning_objective_metric": '"loss"',
    "sagemaker_something_new": '{"deep": [1, 2]}',
    "sagemaker_instance_type": '"ml.p4d.24xlarge"',
}


def test_the_platforms_own_parameters_never_reach_the_script(base: Base) -> None:
    """Contract 14: not as arguments, not in SM_HPS, not as SM_HP_*; those beyond the nine are SM_FRAMEWORK_PARAMS."""
    reserved = {name: value for name, value in RESERVED.items() if value is not None}
    base.hyperparameters({**reserved, "epochs": "3"})
    base.program(SEES)

    done = base.train()

    assert done.argv == ["--epochs", "3"]
    assert json.loads(done.environ["SM_HPS"]) == {"epochs": 3}
    assert {name for name in done.environ if name.startswith("SM_HP_")} == {"SM_HP_EPOCHS"}
    assert json.loads(done.environ["SM_FRAMEWORK_PARAMS"]) == {
        "sagemaker_something_new": {"deep": [1, 2]},
        "sagemaker_instance_type": "ml.p4d.24xlarge",
    }


def test_arguments_are_sorted_by_name_and_one_letter_has_one_dash(base: Base) -> None:
    """Contract point 15: the order of plain strings: capitals first, dashes before letters."""
    base.hyperparameters({"b": "1", "learning-rate": "0.1", "Zeta": "2", "alpha": "3", "learning_rate": "4", "a": "5"})
    base.program(SEES)

    done = base.train()

    assert done.argv == [
        "--Zeta",
        "2",
        "-a",
        "5",
        "--alpha",
        "3",
        "-b",
        "1",
        "--learning-rate",
        "0.1",
        "--learning_rate",
        "4",
    ]


SHELL = """#!/bin/sh
printf '%s\\0' "$@" > "$SM_OUTPUT_DATA_DIR/arguments"
"""


def test_a_shell_script_gets_the_same_tokens(base: Base) -> None:
    """Contract point 17: quoted exactly once; here, handed over without any shell in between."""
    values: dict[str, Any] = {f"v{n:02}": text for n, (text, _) in enumerate(TOKENS)}
    base.hyperparameters(values, program="run.sh")
    base.program(SHELL, "run.sh")

    done = base.train()

    assert done.status == 0, done
    tokens = (base.output / "data/arguments").read_bytes().decode().split("\0")[:-1]
    assert tokens[1::2] == [token for _, token in TOKENS]
    assert tokens[0::2] == [f"--v{n:02}" for n in range(len(TOKENS))]
    assert not list(base.root.rglob("hacked"))


def test_a_shell_script_without_a_first_line_or_permission_runs(base: Base) -> None:
    """Contract points 17, 32."""
    base.hyperparameters({"x": "a b"}, program="run.sh")
    path = base.program(SHELL.partition("\n")[2], "run.sh")
    path.chmod(0o644)

    done = base.train()

    assert done.status == 0, done
    assert (base.output / "data/arguments").read_bytes() == b"-x\0a b\0"


def test_the_variables_tell_the_same_as_the_arguments(base: Base) -> None:
    """Contract point 18: SM_USER_ARGS is argv; SM_HPS is compact, sorted and ASCII."""
    base.hyperparameters({"b": "true", "a": '{"z": "é", "y": [1, 2.5]}', "c": "plain"})
    base.program(SEES)

    done = base.train()

    assert json.loads(done.environ["SM_USER_ARGS"]) == done.argv
    assert done.environ["SM_USER_ARGS"] == json.dumps(done.argv, separators=(",", ":"))
    assert done.environ["SM_HPS"] == '{"a":{"y":[1,2.5],"z":"\\u00e9"},"b":true,"c":"plain"}'


def test_each_hyperparameter_is_a_variable_in_capitals_with_a_legal_alias(base: Base) -> None:
    """Contract point 19."""
    base.hyperparameters({"learning-rate": "1e-5", "model.name": "x", "epochs": "3", "flag": "true", "none": "null"})
    base.program(SEES)

    done = base.train()

    assert {name: value for name, value in done.environ.items() if name.startswith("SM_HP_")} == {
        "SM_HP_LEARNING-RATE": "1e-05",
        "SM_HP_LEARNING_RATE": "1e-05",
        "SM_HP_MODEL.NAME": "x",
        "SM_HP_MODEL_NAME": "x",
        "SM_HP_EPOCHS": "3",
        "SM_HP_FLAG": "true",
        "SM_HP_NONE": "",
    }


def test_mp_parameters_pass_through_as_argument_and_variable(base: Base) -> None:
    """Contract point 20."""
    base.hyperparameters({"mp_parameters": '{"partitions": 2, "ddp": true}'})
    base.program(SEES)

    done = base.train()

    assert done.argv == ["--mp_parameters", "ddp=True,partitions=2"]
    assert done.environ["SM_HP_MP_PARAMETERS"] == '{"ddp":true,"partitions":2}'


@pytest.mark.parametrize(
    ("style", "argv"),
    [
        ("json", ["--flag", "true", "--list", '[1, "a"]', "--n", "3"]),
        ("flags", ["--flag", "--list", "1", "a", "-n", "3"]),
        ("none", []),
    ],
)
def test_the_style_of_arguments_can_be_chosen(base: Base, style: str, argv: list[str]) -> None:
    """Contract point 15, as an addition."""
    base.hyperparameters({"flag": "true", "list": '[1, "a"]', "n": "3"})
    base.program(SEES)

    done = base.train(TOOLKIT_ARGUMENT_STYLE=style)

    assert done.argv == argv


def test_of_a_very_long_command_the_log_has_the_beginning_and_outcome_json_all(base: Base) -> None:
    many = {f"name_{number}": "1" for number in range(3_000)}
    base.hyperparameters({**many, "aaa_password": json.dumps("hq7-" * 3000)})
    base.program("import sys\nraise SystemExit(len(sys.argv) != 6_003)\n")

    done = base.train()

    (line,) = [line for line in done.stderr.splitlines() if b"Invoking script" in line]
    assert done.status == 0, done.status
    assert len(line) < 8_300
    assert line.endswith(b" characters more: outcome.json, toolkit check --json)")
    assert b"hq7" not in line
    assert len(done.outcome["command"]) == 6_004
