"""docs/modelparallel.md's table of names holds: what it says works is there, what it says is refused is not."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from toolkit.launchers.compat import FOLDER
from toolkit.launchers.environment import HOOK
from toolkit.parallelism.parameters import Parameters

pytestmark = pytest.mark.torch
PAGE = Path(__file__).parents[3] / "docs/modelparallel.md"
ASK = """
import json, sys
import smdistributed.modelparallel.torch as smp
found = {}
for name in json.load(sys.stdin):
    there = smp
    try:
        for part in name.split("."):
            there = getattr(there, part)
        if name == "DistributedModel.join":
            there(None)
        found[name] = ""
    except Exception as error:
        found[name] = f"{type(error).__name__}: {error}"
found["public"] = [name for name in dir(smp) if not name.startswith("_")]
found["public"] += [f"nn.{name}" for name in dir(smp.nn) if name.startswith(("Dist", "Fused"))]
print(json.dumps(found))
"""


def test_every_name_is_in_the_table_and_there_or_refused_as_it_says() -> None:
    section = PAGE.read_text().partition("## Names for PyTorch")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \| (works|differs|refused)\b(.*) \|$", section, re.MULTILINE)
    told = {name: how for names, how, _ in rows for name in re.findall(r"`([\w.]+)`", names)}
    environ = {"PYTHONPATH": str(HOOK), "TOOLKIT_COMPAT_PATH": str(FOLDER / "smp"), "PATH": os.environ["PATH"]}

    asked = subprocess.run(
        [sys.executable, "-c", ASK], input=json.dumps(list(told)), env=environ, capture_output=True, text=True
    )

    assert asked.returncode == 0, asked.stderr
    found = json.loads(asked.stdout)
    public = found.pop("public")
    assert [name for name in public if not any(each.split(".")[0] == name or each == name for each in told)] == []
    assert len(rows) == section.count("\n| `")
    assert {name: why for name, why in found.items() if why and told[name] != "refused"} == {}
    assert [name for name, why in found.items() if not why and told[name] == "refused"] == []


def test_every_parameter_is_in_the_table_of_parameters() -> None:
    section = PAGE.read_text().partition("## Parameters")[2].partition("\n## ")[0]
    named = set(re.findall(r"\w+", " ".join(re.findall(r"^\| (.*?) \|", section, re.MULTILINE))))

    missing = [field.name for field in msgspec.structs.fields(Parameters) if field.name not in named]

    assert [name for name in missing if not name.startswith("sdp_")] == []
