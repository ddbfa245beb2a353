"""What manifest.json costs: CPU of the fork that writes it, and its size.

`scripts/bench manifest [--runs N] [--packages N]`. The job: source and one channel of 20 files, and of more than are
looked at, and the packages of the environment that runs this, with made ones beside them up to --packages. --against:
another checkout, whose toolkit takes turns with this one.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from functools import partial
from importlib.metadata import distributions
from pathlib import Path
from statistics import median

from harness import ROOT, in_turns, parser, print_machine, print_promise, print_table

MOST_MS, MOST_KB = 30, 30
RECORD_BYTES = 3_700  # The median of the 108 packages in .venv.


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--runs", type=int, default=9, help="of each (%(default)s)")
    arguments.add_argument("--packages", type=int, default=300, help="as many as are installed, at least (%(default)s)")
    arguments.add_argument("--against", type=Path, metavar="FOLDER", help="a checkout to take turns with")
    arguments.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    words = arguments.parse_args()
    if words.one is not None:
        print(json.dumps(measure(words.one)))
        return
    print_machine()
    checkouts = {"this": ROOT} | ({str(words.against): words.against.resolve()} if words.against else {})
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        packages = make_packages(Path(folder, "packages"), words.packages)
        for files in (20, 600):
            base = make_base(Path(folder, str(files)), files)
            ways = {name: partial(run_one, root, base, packages) for name, root in checkouts.items()}
            for name, runs in in_turns(ways, words.runs).items():
                ms = [run["CPU ms"] for run in runs]
                rows.append((name, files, f"{median(ms):.1f} ms", f"{min(ms):.1f} ms", f"{runs[0]['kB']:.1f} kB"))
                count, size = runs[0]["packages"], runs[0]["kB"]
                if (name, files) == ("this", 20):
                    holds = median(ms) <= MOST_MS and size <= MOST_KB
    print_table(("checkout", "files in source and channel", "CPU, median", "least", "size"), rows)
    print_promise(holds, f"{MOST_MS} ms and {MOST_KB} kB or less with 20 files and {count} packages")


def run_one(root: Path, base: Path, packages: Path) -> dict[str, float]:
    """Return what `measure` does in a process of its own, with the toolkit of the checkout *root*."""
    python_path = f"{root}{os.pathsep}{packages}"
    command = (sys.executable, __file__, "--one", str(base))
    answer: dict[str, float] = json.loads(
        subprocess.check_output(command, env={**os.environ, "PYTHONPATH": python_path})
    )
    return answer


def make_packages(folder: Path, count: int) -> Path:
    """Make the metadata of so many packages in *folder* that there are *count* with those installed here."""
    folder.mkdir()
    for number in range(len(list(distributions())), count):
        metadata = folder / f"made_{number}-1.{number}.dist-info"
        metadata.mkdir()
        line = f"made_{number}/module.py,sha256={'x' * 43},1234\n"
        (metadata / "RECORD").write_text(line * (RECORD_BYTES // len(line)))
    return folder


def make_base(base: Path, files: int) -> Path:
    """Make an /opt/ml whose source and channel have so many *files* of 2 kB."""
    for folder in (base / "code", base / "input/data/training"):
        folder.mkdir(parents=True)
        for number in range(files):
            (folder / f"part-{number:04}.csv").write_bytes(os.urandom(2000))
    (base / "code/train.py").write_text("print('done')\n")
    config = base / "input/config"
    config.mkdir()
    (config / "hyperparameters.json").write_text(json.dumps({"sagemaker_program": '"train.py"', "seed": "1"}))
    channel = {"TrainingInputMode": "File", "S3DistributionType": "FullyReplicated", "RecordWrapperType": "None"}
    (config / "inputdataconfig.json").write_text(json.dumps({"training": channel}))
    hosts = {"current_host": "algo-1", "hosts": ["algo-1"], "network_interface_name": "lo"}
    (config / "resourceconfig.json").write_text(json.dumps(hosts))
    return base


def measure(base: Path) -> dict[str, float]:
    """Return the milliseconds of CPU of the fork, the kilobytes of its manifest, and the packages in it."""
    sys.path.insert(0, os.environ["PYTHONPATH"].partition(os.pathsep)[0])  # The checkout that is measured.
    from toolkit.log import Log
    from toolkit.train import manifest, walk
    from toolkit.train.platforms import table as platforms
    from toolkit.train.supervise.children import fork_call
    from toolkit.train.supervise.kernel import prctl

    environ = {**os.environ, "SAGEMAKER_BASE_DIR": str(base)}
    log = Log(level=50)
    log.hide(environ)
    job = walk.prepared(platforms.detect(environ), environ, sys.executable, log)
    job = walk.with_script(job, log)
    job.folders.output.mkdir(exist_ok=True)
    read_end, write_end = os.pipe()
    pid = fork_call(lambda: manifest.write_apart(job, log.mask, write_end), prctl=prctl())
    os.waitpid(pid, 0)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    os.close(read_end)
    return {
        "CPU ms": (used.ru_utime + used.ru_stime) * 1e3,
        "kB": job.folders.manifest.stat().st_size / 1e3,
        "packages": len(json.loads(job.folders.manifest.read_bytes())["packages"]),
    }


if __name__ == "__main__":
    main()
