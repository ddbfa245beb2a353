"""Measure the packing of model.tar.gz beside Python's tarfile: same folders, same machine, in turns.

    scripts/bench pack [--mib N] [--files N] [--repeat N] [--without-zlib-ng]

text      the sources and pages of this project, repeated
weights   float32, normally distributed with deviation 0.02, as a network's weights
random    bytes that cannot be compressed
small     files of 1 to 4 KiB of text

tarfile: tarfile.open(mode="w:gz", compresslevel=6). Level 6 is ours, too; tarfile's default of 9 stands beside it. The
times are the fastest of N; archives are written to a file in memory (/dev/shm) where there is one.
"""

import argparse
import random
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

from harness import ROOT, in_turns, parser, print_machine, print_table, timed

from toolkit.train.artifacts import gzip_writer
from toolkit.train.artifacts.pack import pack


def text(bytes_: int) -> bytes:
    paths = sorted([*ROOT.joinpath("toolkit").rglob("*.py"), *ROOT.joinpath("docs").glob("*.md")])
    block = b"".join(path.read_bytes() for path in paths)
    return (block * (bytes_ // len(block) + 1))[:bytes_]


def make(folder: Path, name: str, mib: int, files: int) -> None:
    folder.mkdir()
    if name == "small":
        block, choose = text(16 << 20), random.Random(1)
        for number in range(files):
            at, size = choose.randrange(len(block) - 4096), choose.randrange(1024, 4096)
            path = folder / f"part-{number % 100:02}" / f"{number}.json"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(block[at : at + size])
    elif name == "weights":
        import numpy as np

        weights = np.random.default_rng(1).normal(0, 0.02, mib << 18).astype(np.float32)
        (folder / "weights.bin").write_bytes(weights.tobytes())
    else:
        generator = random.Random(1)
        content = text(mib << 20) if name == "text" else b"".join(generator.randbytes(1 << 20) for _ in range(mib))
        (folder / name).write_bytes(content)


def theirs(folder: Path, archive: Path, level: int = 6) -> None:
    with tarfile.open(archive, "w:gz", compresslevel=level) as tar:
        for path in sorted(folder.iterdir()):
            tar.add(path, path.name)


def row(kind: str, base: Path, words: argparse.Namespace) -> tuple[str, ...]:
    """Return a line of the table: seconds, ratios of seconds, of CPU, and of sizes (ours / tarfile's)."""
    folder, archive = base / kind, base / "model.tar.gz"
    make(folder, kind, words.mib, words.files)
    sizes = {}

    def packed(name: str, act: Callable[[], object]) -> tuple[float, float]:
        seconds = timed(act)
        sizes[name] = archive.stat().st_size
        return seconds

    runs = in_turns(
        {
            "ours": lambda: packed("ours", lambda: pack(folder, archive)),
            "tarfile": lambda: packed("tarfile", lambda: theirs(folder, archive)),
        },
        words.repeat,
    )
    (wall_9_s, _) = timed(lambda: theirs(folder, archive, 9))
    pack(folder, archive)
    subprocess.run(["gzip", "-t", archive], check=True)
    subprocess.run(["rm", "-r", folder], check=True)
    (wall_s, cpu_s), (wall_6_s, cpu_6_s) = min(runs["ours"]), min(runs["tarfile"])
    seconds = (f"{figure:.2f} s" for figure in (wall_s, wall_6_s, wall_9_s))
    ratios = (f"{wall_6_s / wall_s:.2f}", f"{wall_9_s / wall_s:.1f}", f"{cpu_6_s / cpu_s:.1f}")
    return kind, *seconds, *ratios, f"{100 * sizes['ours'] / sizes['tarfile']:.1f} %"


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--mib", type=int, default=64, help="MiB of each of the three large files (default 64)")
    options.add_argument("--files", type=int, default=10_000, help="how many small files (default 10,000)")
    options.add_argument("--repeat", type=int, default=3, help="turns (default 3)")
    options.add_argument("--without-zlib-ng", action="store_true", help="as where zlib-ng is not installed")
    words = options.parse_args()
    if words.without_zlib_ng:
        sys.modules["zlib_ng"] = None  # type: ignore[assignment]
    print_machine(f"compressed by {gzip_writer._zlib().__name__}")
    place = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(prefix="bench-", dir=place) as name:
        head = ("", "ours", "tarfile", "level 9", "times as fast", "of level 9", "CPU", "size")
        print_table(head, (row(kind, Path(name), words) for kind in ("text", "weights", "random", "small")))


if __name__ == "__main__":
    main()
