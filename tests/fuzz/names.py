"""Names that strangers choose: of hosts, channels and entry points in documents, and of processes in the kernel."""

import json
import os
import sys
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from tests.fuzz.documents import MACHINE
from tests.fuzz.places import fresh
from tests.fuzz.target import target
from toolkit import settings
from toolkit.errors import ToolkitError
from toolkit.log import Log
from toolkit.train.platforms import table as platforms
from toolkit.train.supervise import process
from toolkit.train.supervise.console import Console, Outlets

NAMES = (
    "algo-1",
    "algo-2",
    "../../..",
    "..",
    ".",
    "",
    "/",
    "/etc",
    "a/b",
    "a\0b",
    "~",
    "a b",
    "é",
    "\ud800",
    "日" * 100,
    "x" * 300,
    "-rf",
    "$(id)",
    "algo-1.domain.example",
    "10.0.0.1",
    "::1",
    "a\nb",
    "con",
    "%s",
    "{0}",
)
names = st.sampled_from(NAMES) | st.text(st.characters(), max_size=6)


@target(names, st.lists(names, max_size=2), names, names)
def names_stay_below_the_job(host: str, others: list[str], channel: str, entry: str) -> None:
    base = fresh("names")
    root = base / "outer/opt/ml"
    (root / "input/config").mkdir(parents=True)
    documents: dict[str, Any] = {
        "hyperparameters": {"sagemaker_program": entry},
        "resourceconfig": {"hosts": [host, *others], "current_host": host},
        "inputdataconfig": {channel: {"TrainingInputMode": "File"}},
    }
    for name, content in documents.items():
        (root / f"input/config/{name}.json").write_text(json.dumps(content))
    environ = {"PATH": "/usr/bin:/bin", "SAGEMAKER_BASE_DIR": str(root)}
    log = Log()
    log.say_through(lambda _: None)
    try:
        platform = platforms.detect(environ)
        job = platform.read(environ, settings.read(environ), MACHINE, log, interpreter=sys.executable)
    except ToolkitError as error:
        assert error.exit_code == 78, error
        return

    for item in job.spec.channels:
        assert Path(os.path.normpath(item.folder)).is_relative_to(root / "input/data"), item
        assert Path(os.path.normpath(item.folder)) != root / "input/data", item
    _write_log(job.cluster.current, root / "output/data/logs")
    assert [path.name for path in base.iterdir()] == ["outer"]
    assert {path.name for path in (root / "output/data").iterdir()} == {"logs"}


def _write_log(host: str, folder: Path) -> None:
    """Write what a rank of *host* says into its own file below *folder*, as a job does."""
    null = os.open(os.devnull, os.O_RDWR)
    descriptors = _descriptors()
    problems: list[str] = []
    console = Console(
        host=host,
        prefix_ranks=True,
        make_monitor=lambda _rank, _host: lambda _block: None,
        files=folder,
        file_bytes=1 << 20,
        note=problems.append,
        outlets=Outlets(null, null),
    )
    _, files = console.streams("rank 0", 0, stdout=null, stderr=null, shared=True)
    (file,) = files
    file.add(b"line\n")
    file.close()
    os.close(null)
    for fd in _descriptors() - descriptors:
        os.close(fd)  # The outlets' own, which they keep as long as a process lives.
    assert not problems, problems
    (written,) = folder.iterdir()
    assert written.read_bytes() == b"line\n"


def _descriptors() -> set[int]:
    return {fd for fd in range(3, 1024) if Path(f"/proc/self/fd/{fd}").is_symlink()}


@target(st.binary(min_size=1, max_size=15).filter(lambda name: b"\0" not in name))
def processes_have_any_name(name: bytes) -> None:
    path = Path(f"/proc/{os.getpid()}/comm")
    old_name = path.read_bytes().rstrip(b"\n")
    path.write_bytes(name)
    try:
        result = process.command_name(os.getpid())
    finally:
        path.write_bytes(old_name)

    assert result.isprintable()
    result.encode()
