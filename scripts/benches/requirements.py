"""What requirements.txt costs at the start: with pip, with uv, with a snapshot that is stored, and one unpacked.

`scripts/bench requirements [--runs N] [--requirements "numpy,requests"]`. Each start of `train` has a new virtual
environment and no cache; the script does nothing. Packages come from pip's index, snapshots go to a folder.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import harness

PACKAGES = "pandas,scikit-learn,matplotlib,requests,PyYAML,tqdm"
UV = "uv==0.13.9"
SHOWN = ("msgspec", "obstore", "pip")  # What the image has besides, without metadata: uv would miss them otherwise.


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--requirements", default=PACKAGES)
    arguments = parser.parse_args()
    uv = harness.environment("bench-uv", [UV])
    if uv is None:
        raise SystemExit("bench: uv cannot be installed")
    harness.print_machine(UV)
    with tempfile.TemporaryDirectory() as folder:
        base = make_base(Path(folder), harness.names(arguments.requirements))
        rows = []
        for number in range(arguments.runs):
            store = f"file://{folder}/kept-{number}"
            for name, path, more in (
                ("no requirements", "", {"TOOLKIT_BASE": str(base.with_name("plain"))}),
                ("pip", "", {}),
                ("uv", f"{uv}:", {}),
                ("uv, and stored", f"{uv}:", {"TOOLKIT_PACKAGES_URI": store}),
                ("unpacked", f"{uv}:", {"TOOLKIT_PACKAGES_URI": store}),
            ):
                wall_s, cpu_s = start(Path(folder), base, {"PATH": f"{path}{os.environ['PATH']}", **more})
                rows.append((name, f"{wall_s:.1f} s", f"{cpu_s:.1f} s"))
            (stored,) = Path(folder, f"kept-{number}").iterdir()
        harness.print_table(("start", "wall", "CPU"), rows)
        print(f"stored: {stored.stat().st_size / 1e6:.0f} MB")


def make_base(folder: Path, names: list[str]) -> Path:
    """Make an /opt/ml with and one without requirements, and what the image has besides."""
    for name in ("plain", "with"):
        (folder / name / "code").mkdir(parents=True)
        (folder / name / "code/train.py").write_text("")
    (folder / "with/code/requirements.txt").write_text("\n".join(names) + "\n")
    import msgspec

    (folder / "shown").mkdir()
    for name in SHOWN:
        (folder / "shown" / name).symlink_to(Path(msgspec.__file__).parents[1] / name)
    return folder / "with"


def start(folder: Path, base: Path, environ: dict[str, str]) -> tuple[float, float]:
    """Run `train` in a new environment; return the seconds that passed, and those of CPU."""
    image, temporary = folder / "image", folder / "tmp"
    for place in (image, temporary):
        shutil.rmtree(place, ignore_errors=True)
    temporary.mkdir()
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", image], check=True)
    (site,) = image.glob("lib/python*/site-packages")
    (site / "shown.pth").write_text(f"{harness.ROOT}\n{folder / 'shown'}\n")
    ours = {
        **{name: value for name, value in os.environ.items() if not name.startswith("TOOLKIT_")},
        "TOOLKIT_BASE": str(base),
        "TOOLKIT_PROGRAM": "train.py",
        "TMPDIR": str(temporary),
        "PIP_NO_CACHE_DIR": "1",
        "UV_NO_CACHE": "1",
        **environ,
    }
    before = os.times()
    began_s = time.monotonic()
    command = (image / "bin/python", "-c", "from toolkit.cli.main import train; train()")
    done = subprocess.run(command, env=ours, capture_output=True, text=True)
    wall_s = time.monotonic() - began_s
    after = os.times()
    if done.returncode:
        raise SystemExit(f"bench: train ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return wall_s, after.children_user + after.children_system - before.children_user - before.children_system


if __name__ == "__main__":
    main()
