"""Runs launch lines of public repositories, as they stand there, with a small script in place of theirs."""

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

LINES = Path(__file__).with_name("lines.toml")
WITHIN_S = 300
NODE = "@NODE@"
# Without torch: each rank writes what it was given.
SCRIPT = """\
import json, os, sys
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")
with open(os.path.join(os.environ["SEEN"], os.environ["RANK"]), "x") as file:
    json.dump({"argv": sys.argv[1:], **{name: os.environ[name] for name in names}}, file)
"""
# The programs that begin lines: each hands its line to `toolkit torchrun` as it came.
STUBS = {
    "torchrun": 'exec {toolkit} torchrun "$@"',
    "python": 'exec {toolkit} torchrun {python} "$@"',
    "srun": 'exec "$@"',
    "tune": 'shift; exec {toolkit} torchrun "$@"',
}


def read_lines() -> list[dict[str, Any]]:
    return list(import_module("tomllib").loads(LINES.read_text())["line"])


def run_line(row: dict[str, Any], folder: Path) -> tuple[str, str]:
    """Return ("", how it ended) of the line in *row*, or (what is wrong, the output) if that is not as it should be."""
    seen = folder / "seen"
    stubs = _stubs(folder)
    seen.mkdir()
    hosts = [_start(row, folder, stubs, node) for node in range(row.get("hosts", 1))]
    outputs, codes = [], []
    try:
        for host in hosts:
            outputs.append(host.communicate(timeout=WITHIN_S)[0])
            codes.append(host.returncode)
    except subprocess.TimeoutExpired:
        return f"not ended within {WITHIN_S} s", "\n".join(outputs)
    finally:
        for host in hosts:
            host.kill()
    output = "\n".join(outputs)
    if "ends" in row:
        refused = all(row["ends"] in text for text in outputs) and set(codes) == {78}
        return ("" if refused else f"expected 78 and {row['ends']!r}, found {codes}"), f"78: {row['ends']}"
    wrong = f"exit codes {codes}" if any(codes) else _check(row, seen)
    return wrong, output if wrong else f"0, ranks 0 to {row['ranks'] - 1}" if row["ranks"] > 1 else "0, rank 0"


def _start(row: dict[str, Any], folder: Path, stubs: Path, node: int) -> subprocess.Popen[str]:
    """Start the line on host number *node*."""
    host = folder / f"host-{node}"
    name = row["script"] if "script" in row else row["module"].replace(".", "/") + ".py"
    (host / name).parent.mkdir(parents=True)
    (host / name).write_text(SCRIPT)
    (host / "tmp").mkdir()
    line = row["line"].replace(NODE, str(node))
    for old, new in row.get("replace", {}).items():
        line = line.replace(old, new)
    environ = {
        "PATH": f"{stubs}:{Path(sys.executable).parent}:/usr/bin:/bin",
        "TMPDIR": str(host / "tmp"),
        "SEEN": str(folder / "seen"),
        "TOOLKIT_JOIN_S": "120",
        **{key: value.replace(NODE, str(node)) for key, value in row.get("set", {}).items()},
    }
    return subprocess.Popen(
        ["bash", "-c", line, f"{host}/launch.sh"],
        cwd=host,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _stubs(folder: Path) -> Path:
    stubs = folder / "stubs"
    stubs.mkdir()
    toolkit = f"{sys.executable} {Path(sys.executable).with_name('toolkit')}"
    for name, text in STUBS.items():
        file = stubs / name
        file.write_text("#!/bin/sh\n" + text.format(toolkit=toolkit, python=sys.executable) + "\n")
        file.chmod(0o755)
    return stubs


def _check(row: dict[str, Any], seen: Path) -> str:
    """Return what is wrong with the ranks that have run, "" for nothing."""
    ranks = {int(file.name): json.loads(file.read_text()) for file in seen.iterdir()}
    if sorted(ranks) != list(range(row["ranks"])):
        return f"expected ranks 0 to {row['ranks'] - 1}, found {sorted(ranks)}"
    each = row["ranks"] // row.get("hosts", 1)
    for rank, facts in ranks.items():
        expected = (str(row["ranks"]), str(each), str(rank // each), str(rank % each))
        values = tuple(facts[name] for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "LOCAL_RANK"))
        if values != expected:
            return f"rank {rank}: expected world size, ranks of a host, host, local rank {expected}, found {values}"
    if len({(facts["MASTER_ADDR"], facts["MASTER_PORT"]) for facts in ranks.values()}) > 1:
        return "the ranks do not meet at one place"
    passed = {tuple(word for word in facts["argv"] if not word.startswith("--local-rank")) for facts in ranks.values()}
    return "" if len(passed) == 1 else f"the ranks have different arguments: {passed}"
