from pathlib import Path

import pytest

from toolkit.commands.check.options import nearest, read

KNOWN = """
import argparse, click
parser = argparse.ArgumentParser()
parser.add_argument("-b", "--train-batch-size", "--batch", type=int)
parser.add_argument('--learningRate')
group = parser.add_argument_group("model")
group.add_argument("--num_layers")
@click.option("--shuffle/--no-shuffle")
def main(): ...
"""


@pytest.mark.parametrize(
    ("option", "declared_name"),
    [
        ("--train_batch_size", "--train-batch-size"),
        ("--learning_rate", "--learningRate"),
        ("--learning-rate", "--learningRate"),
        ("--num-layers", "--num_layers"),
        ("--numlayers", "--num_layers"),
        ("--no_shuffle", "--no-shuffle"),
        ("--train-batch-size", ""),
        ("--train-batch", ""),  # argparse completes it.
        ("--batch", ""),
        ("--epochs", ""),
    ],
)
def test_an_option_that_the_script_knows_in_another_spelling_is_found(
    tmp_path: Path, option: str, declared_name: str
) -> None:
    (tmp_path / "train.py").write_text(KNOWN)

    declared = read(tmp_path / "train.py")

    assert declared is not None
    assert not declared.is_lenient
    assert nearest(option, declared.options) == declared_name


@pytest.mark.parametrize("source", ["print(1)", "def broken(:", "x = '\0'", None, "f(" * 5000])
def test_a_script_without_options_or_that_cannot_be_read_has_none(tmp_path: Path, source: str | None) -> None:
    if source is not None:
        (tmp_path / "train.py").write_text(source)

    assert read(tmp_path / "train.py") is None


def test_parse_known_args_is_seen(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(KNOWN + "args, _ = parser.parse_known_args()\n")

    declared = read(tmp_path / "train.py")

    assert declared is not None
    assert declared.is_lenient
