"""What manifest.json costs: CPU of the fork that writes it, and its size; beside the fork itself, which delays a job.

`scripts/bench manifest [--runs N]`. The job: source and one channel of 20 files, and of more than are looked at, and
the packages of the environment that runs this.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one is not None:
        print(json.dumps(measure(arguments.one)))
        return
    with tempfile.TemporaryDirectory() as folder:
        for name, files in (("small", 20), ("large", 600)):
            base = make_base(Path(folder, name), files)
            command = (sys.executable, __file__, "--one", str(base))
            runs = [json.loads(subprocess.check_output(command)) for _ in range(arguments.runs)]
            shown = {key: round(median(run[key] for run in runs), 1) for key in runs[0]}
            print(f"{files} files in source and channel, median of {arguments.runs}: {shown}")
    print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores")


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
    """Return the milliseconds of CPU of the fork, those that the fork takes from this process, and the kilobytes."""
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
    began_s = time.perf_counter()
    pid = fork_call(lambda: manifest.write_apart(job, log.mask, write_end), prctl=prctl())
    forked_s = time.perf_counter() - began_s
    os.waitpid(pid, 0)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    os.close(read_end)
    return {
        "CPU ms": (used.ru_utime + used.ru_stime) * 1e3,
        "ms of the fork": forked_s * 1e3,
        "kB": job.folders.manifest.stat().st_size / 1e3,
        "packages": len(json.loads(job.folders.manifest.read_bytes())["packages"]),
    }


if __name__ == "__main__":
    main()
