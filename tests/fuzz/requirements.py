"""requirements.txt of any bytes: what is wrong with it, pip says; reading it for the stamp neither fails nor hangs."""

import sys
import time
from unittest import mock

import msgspec
from hypothesis import strategies as st

from tests.fuzz.places import fresh
from tests.fuzz.target import target
from tests.train.launchers.jobs import job_of
from toolkit.job.job import Script
from toolkit.train.source import tree_digest
from toolkit.train.source.install import phase

WITHIN_S = 5.0
WORDS = (
    "numpy",
    "numpy==1.0",
    "-r other.txt",
    "--requirement=other.txt",
    "-c limits.txt",
    "-rrequirements.txt",
    "-r .",
    "-r /",
    "-e ./local",
    "./local",
    ".",
    "file:local",
    "x @ file:local/a.whl",
    "-r a\0b",
    "./a\0b",
    "-r " + "x" * 5000,
    "#",
    "\\",
    "--find-links ./local",
    "-f .",
    "-r ../../../../etc/hostname",
    "-i https://x/y",
    "\x0b",
    "\u2028",
    "[",
    "-r",
)
ENCODINGS = ("utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32", "latin-1")
lines = st.lists(st.sampled_from(WORDS) | st.text(max_size=10), max_size=6).map("\n".join)
contents = st.tuples(lines, st.sampled_from(ENCODINGS)).map(lambda pair: pair[0].encode(pair[1], "replace"))


@target(contents | st.binary(max_size=30), contents)
def requirements_are_pips_to_judge(content: bytes, other: bytes) -> None:
    base = fresh("requirements")
    code = base / "code"
    (code / "local").mkdir(parents=True)
    (code / "local/setup.py").write_text("setup()")
    (code / "requirements.txt").write_bytes(content)
    (code / "other.txt").write_bytes(other)
    script = Script(entry="train.py", kind="program", folder=code)
    job = msgspec.structs.replace(job_of("script"), script=script, interpreter=sys.executable)
    began_s = time.process_time()

    with mock.patch.object(tree_digest, "MOST_FILES", 100):  # Of a line that names "/" so many files are enough.
        result = phase(job)

    assert time.process_time() - began_s < WITHIN_S
    assert result is None or result.main.argv[-1] == "requirements.txt"
