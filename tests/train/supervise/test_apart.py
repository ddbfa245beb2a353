"""A child that is kept apart: no phase waits for it or kills it, and its pid is free once it is reaped."""

import json
import subprocess
import sys
from pathlib import Path

SUPERVISES = """
import json, os, signal, sys
from pathlib import Path
from toolkit.job.plan import Phase, ProcessSpec, StopPolicy
from toolkit.log import Log
from toolkit.train.supervise.children import fork_call
from toolkit.train.supervise.console import Console
from toolkit.train.supervise.supervisor import Supervisor
from toolkit.train.supervise.phases import run_phase
from toolkit.train.supervise.signals import Signals

folder = Path(sys.argv[1])
with Signals(last=True) as signals:
    console = Console(host="a", prefix_ranks=False, make_monitor=lambda *_: None, files=None, file_bytes=1, note=print)
    supervisor = Supervisor(
        signals=signals,
        console=console,
        log=Log(),
        run_folder=folder,
        marker="TEST_RUN=1",
        python=sys.executable,
        alone=True,
    )
    read_end, write_end = os.pipe()
    pids = {
        "ends": fork_call(lambda: 0, prctl=supervisor.prctl),
        "stays": fork_call(lambda: len(os.read(read_end, 1)), prctl=supervisor.prctl),
    }
    supervisor.apart.update(pids.values())
    main = ProcessSpec(
        name="script",
        argv=("/bin/sh", "-c", "sleep 0.2; exit 0"),
        environ={"PATH": os.defpath},
        cwd=folder,
        stop=StopPolicy(),
        rank=0,
    )
    ended = run_phase(supervisor, Phase(name="train", main=main))
    left = [name for name, pid in pids.items() if pid in supervisor.apart]
    os.write(write_end, b"1")
    _, status = os.waitpid(pids["stays"], 0)
    supervisor.finish()
    report = {"left": left, "status": status, "codes": [end.code for end in ended.exits]}
    (folder / "report.json").write_text(json.dumps(report))
"""


def test_a_phase_leaves_it_alone_and_forgets_it_when_it_is_reaped(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", SUPERVISES, str(tmp_path)], capture_output=True, text=True, timeout=60)

    assert done.returncode == 0, done
    report = json.loads((tmp_path / "report.json").read_bytes())
    assert report == {"left": ["stays"], "status": 1 << 8, "codes": [0]}
