"""The small form of `scripts/bench storage`: a killed upload and a killed restore go on, in bounded memory."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.storage.servers import S3

pytestmark = pytest.mark.storage
ROOT = Path(__file__).parents[2]


def test_a_killed_upload_and_a_killed_restore_go_on_where_they_were(moto: S3) -> None:
    argv = (sys.executable, "scripts/benches/storage.py", "--mib", "96", "--json")

    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=300)

    assert done.returncode == 0, (done.stdout, done.stderr)
    stored = json.loads(done.stdout)
    assert stored["equal"]
    assert not stored["listed when killed"]
    assert not stored["visible when killed"]
    assert stored["uploaded when killed"] >= 6
    assert stored["PUT of parts"] <= 12 + 4  # Of the four that were under way, each may be sent twice.
    assert stored["GET of parts"] <= 12 + 4
