"""The list of AWS's examples is whole, and its page tells of each of them."""

import json
import re
from pathlib import Path

import pytest

from tests.examples import data
from tests.examples.__main__ import LIST, ROOT, STAND_INS, unpacked

EXAMPLES = json.loads(LIST.read_text())["examples"]
PAGE = (ROOT / "docs/lab/official-examples.md").read_text()


@pytest.mark.parametrize("example", EXAMPLES, ids=[example["name"] for example in EXAMPLES])
def test_an_example_names_a_commit_files_data_and_stand_ins_that_are_there_and_the_page_has_it(example: dict) -> None:  # type: ignore[type-arg]
    assert re.fullmatch("[0-9a-f]{40}", example["commit"])
    assert example["script"] in example["files"]
    assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in example["files"].values())
    assert example["data"] in data.KINDS
    stand_ins = {"cuda", "keras_mnist", *(path.name for path in STAND_INS.iterdir())}
    assert set(example["stand_ins"]) <= stand_ins
    assert re.search(rf"^\| {re.escape(example['name'])} \|", PAGE, flags=re.MULTILINE)


def test_a_checkout_without_the_commit_is_named(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"train\.py: .*; expected a clone with its whole history in "):
        unpacked({"commit": "0" * 40, "folder": "there", "files": {"train.py": "0" * 64}}, tmp_path, tmp_path / "to")
