"""Paths of any bytes: Linux knows no encoding, and JSON knows UTF-8 alone."""

import io
import json
import os
import tarfile
from pathlib import Path

import pytest

from tests.train.base import Base
from toolkit.metrics.file import read

SCRIPT = b"""
import os, time
print("loss=0.5", flush=True)
base = os.environ["SAGEMAKER_BASE_DIR"]
open(os.path.join(base, "checkpoints", "last.pt"), "w").close()
deadline = time.monotonic() + 40
while not os.path.exists(os.path.join(base, "output", "monitor", "monitor.json")) and time.monotonic() < deadline:
    time.sleep(0.05)
print(sorted(os.listdir(os.fsencode(os.getcwd()))), flush=True)
"""


@pytest.mark.parametrize("kind", ["folder", "tar"])
def test_a_base_and_a_source_of_any_bytes_train_with_all_services(tmp_path: Path, kind: str) -> None:
    base = Base(tmp_path / os.fsdecode(b"base-\xff"))
    files = {"train.py": SCRIPT, os.fsdecode(b"name-\xfe.txt"): b"x"}
    source = base.folder / "source"
    if kind == "tar":
        with tarfile.open(source, "w") as tar:
            for name, content in files.items():
                member = tarfile.TarInfo(name)
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    else:
        source.mkdir()
        for name, content in files.items():
            (source / name).write_bytes(content)
    base.hyperparameters({"sagemaker_submit_directory": json.dumps(str(source))})
    environ = {"TOOLKIT_MONITOR": "on", "TOOLKIT_CHECKPOINT_URI": (tmp_path / "kept").as_uri()}

    for _ in range(2):  # The second run replaces what the first one has put into the code folder.
        done = base.train(environ)

        assert done.succeeded, done
        assert b"[b'.toolkit-source.json', b'name-\\xfe.txt', b'train.py']" in done.stdout, done
        assert rb"/base-\xff/" in done.stderr
    assert (base.output / "monitor" / "monitor.json").is_file()
    assert list((tmp_path / "kept").rglob("manifest.json"))


def test_a_metric_whose_name_no_file_can_hold_does_not_end_the_job(base: Base) -> None:
    base.document("metric-definition-regex.json", [{"Name": "loss \ud800", "Regex": "loss=([0-9.e-]+)"}])
    base.program("print('loss=0.5')\n")

    done = base.train()

    assert done.succeeded, done
    assert [sample.name for sample in read(base.output / "metrics.jsonl")] == [r"loss \ud800"]
