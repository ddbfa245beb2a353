"""docs/modelparallel.md's table of names for TensorFlow holds: what it says works is there."""

import os
import re
import subprocess
from pathlib import Path

from tests.commands.simulate.toolkit_run import ROOT
from tests.tensorflow.bed import BED, needs_bed
from toolkit.train.launchers.compat import FOLDER
from toolkit.train.launchers.environment import HOOK

pytestmark = needs_bed
PAGE = Path(__file__).parents[4] / "docs/modelparallel.md"
ASK = """
import operator, sys, types
import smdistributed.modelparallel.tensorflow as smp
for name in sys.argv[1:]:
    operator.attrgetter(name)(smp)
public = [name for name in dir(smp) if not name.startswith("_")]
print(*(name for name in public if not isinstance(getattr(smp, name), types.ModuleType)))
"""


def test_every_name_of_the_table_is_there_and_every_name_that_is_there_is_in_the_table() -> None:
    section = PAGE.read_text().partition("## Names for TensorFlow")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \| works\b", section, re.MULTILINE)
    told = [name for names in rows for name in re.findall(r"`([\w.]+)`", names)]
    environ = {
        "PYTHONPATH": f"{HOOK}:{ROOT}",
        "TOOLKIT_COMPAT_PATH": str(FOLDER / "smp"),
        "PATH": os.environ["PATH"],
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }

    asked = subprocess.run([BED / "bin/python", "-c", ASK, *told], env=environ, capture_output=True, text=True)

    assert asked.returncode == 0, asked.stderr
    assert len(rows) == section.count("\n| `")
    public = set(asked.stdout.split()) - {"Any", "annotations"}
    assert {name for name in public if name.partition(".")[0] not in {each.partition(".")[0] for each in told}} == set()
