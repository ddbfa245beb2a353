"""The guard files a failure when nothing else of the toolkit works."""

import json
import os
import subprocess
import sys
from pathlib import Path

from toolkit.cli.outermost import _quoted

BROKEN = """
import sys
sys.modules["msgspec"] = None
from toolkit.cli.start import train
train()
"""


def test_an_installation_that_is_damaged_files_the_end_with_the_reason(tmp_path: Path) -> None:
    output = tmp_path / "output"
    output.mkdir()
    (output / "success").touch()
    environ = {"SAGEMAKER_BASE_DIR": str(tmp_path), "PATH": os.environ["PATH"], "DB_PASSWORD": "import of msgspec"}

    done = subprocess.run((sys.executable, "-c", BROKEN), env=environ, capture_output=True, text=True)

    outcome = json.loads((output / "outcome.json").read_bytes())
    failure = (output / "failure").read_text()
    assert (done.returncode, outcome["exit_code"], outcome["status"]) == (70, 70, "failed")
    assert failure.startswith('Framework Error:\nExitCode 70\nErrorMessage "ModuleNotFoundError: ')
    assert "ErrorMessage" in done.stderr and "ModuleNotFoundError" in outcome["cause"]["message"]
    assert not (output / "success").exists()
    assert "import of msgspec" not in failure + done.stderr + str(outcome)


def test_every_letter_gets_into_the_document() -> None:
    text = "".join(map(chr, (*range(0x250), 0x6A21, 0xDCFF, 0x1F600)))

    assert json.loads(_quoted(text)) == text
