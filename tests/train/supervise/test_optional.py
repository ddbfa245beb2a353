"""A service that is optional: however it ends, and whether it starts at all, is none of the job's business."""

import subprocess
import sys
from pathlib import Path

import pytest

SUPERVISES = """
import os, sys
from pathlib import Path
from toolkit.job.plan import Phase, ProcessSpec, StopPolicy
from toolkit.log import Log
from toolkit.train.supervise.console import Console
from toolkit.train.supervise.supervisor import Supervisor
from toolkit.train.supervise.phases import run_phase
from toolkit.train.supervise.signals import Signals

folder, optional, service = Path(sys.argv[1]), sys.argv[2] == "optional", sys.argv[3:]
shell, environ = "/bin/sh", {"PATH": os.defpath}

def spec(name, argv, **more):
    return ProcessSpec(name=name, argv=tuple(argv), environ=environ, cwd=folder, stop=StopPolicy(), **more)

with Signals(last=True) as signals:
    console = Console(host="a", prefix_ranks=False, make_monitor=lambda *_: None, files=None, file_bytes=1, note=print)
    log = Log()
    supervisor = Supervisor(
        signals=signals,
        console=console,
        log=log,
        run_folder=folder,
        marker="TEST_RUN=1",
        python=sys.executable,
        alone=True,
    )
    log.say_through(console.stderr.say, supervisor.finish)
    main = spec("script", (shell, "-c", "for i in 1 2 3 4 5 6 7 8 9; do sleep 0.1; done; echo done"), rank=0)
    services = (spec("beside", service, optional=optional),)
    ended = run_phase(supervisor, Phase(name="train", main=main, services=services))
    log.flush()
    assert ended is not None
    sys.exit(0 if [(end.process, end.code) for end in ended.exits] == [("script", 0)] else 3)
"""


def supervised(folder: Path, word: str, *service: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", SUPERVISES, str(folder), word, *service]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    "service",
    [
        ("/bin/sh", "-c", "exit 3"),
        ("/bin/sh", "-c", "kill -9 $$"),
        ("/bin/sh", "-c", "exit 0"),
        ("/bin/sh", "-c", "trap '' TERM; while :; do sleep 0.1; done"),
        ("/nowhere/beside",),
    ],
    ids=["fails", "is killed", "ends", "does not end", "cannot start"],
)
def test_the_script_runs_to_its_end_whatever_an_optional_service_does(tmp_path: Path, service: tuple[str, ...]) -> None:
    done = supervised(tmp_path, "optional", *service)

    assert (done.returncode, done.stdout) == (0, "done\n"), done
    assert ("beside: " in done.stderr) == ("/nowhere/beside" in service), done


def test_a_service_that_is_needed_ends_the_script_with_it(tmp_path: Path) -> None:
    done = supervised(tmp_path, "needed", "/bin/sh", "-c", "exit 3")

    assert (done.returncode, done.stdout) == (3, ""), done
    assert "beside" in done.stderr
