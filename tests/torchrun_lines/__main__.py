"""Runs each line of lines.toml in a network of its own and prints the table of docs/lab/torchrun-lines.md.

python -m tests.torchrun_lines [WORDS]: the lines whose source holds WORDS; default: all.
"""

import os
import sys
import tempfile
import time
from pathlib import Path

from tests.torchrun_lines.runner import read_lines, run_line

ISOLATED = "TORCHRUN_LINES_ISOLATED"


def main() -> int:
    if ISOLATED not in os.environ:  # Other programs of this machine may have the lines' ports.
        script = 'ip link set lo up && exec "$@"'
        words = (
            "unshare",
            "--map-root-user",
            "--net",
            "sh",
            "-c",
            script,
            "sh",
            sys.executable,
            "-m",
            __package__ or "",
        )
        os.execvpe("unshare", [*words, *sys.argv[1:]], {**os.environ, ISOLATED: "1"})
    wanted = " ".join(sys.argv[1:])
    rows = [row for row in read_lines() if wanted in row["source"]]
    failed = 0
    print("| source | line | hosts | end |\n|---|---|---|---|", flush=True)
    for row in rows:
        begun_s = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            wrong, end = run_line(row, Path(folder))
        failed += bool(wrong)
        line = row["line"].replace("|", "\\|")
        print(f"| {row['source']} | `{line}` | {row.get('hosts', 1)} | {wrong or end} |", flush=True)
        if wrong:
            print(end, file=sys.stderr)
        print(f"{row['source']}: {time.monotonic() - begun_s:.0f} s", file=sys.stderr)
    print(f"{len(rows) - failed} of {len(rows)} lines ended as they should", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
