"""`toolkit profile`: its errors. tests/rank/profiler/test_tracing.py has a rank that answers it."""

import gzip
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.traces import made
from toolkit.errors import UserError

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--steps", "21"], "expected 1 to 20 steps, found 21"),
        (["--ranks", "0,1,2"], "--ranks: expected one or two ranks, as 0 or 0,3, found '0,1,2'"),
        (["--ranks", "all"], "--ranks: expected one or two ranks, as 0 or 0,3, found 'all'"),
        (["nowhere"], "expected the name of a job or its folder, found 'nowhere'"),
        ([], "expected a running job, found no rank of one"),
    ],
)
def test_what_cannot_be_traced_is_said_with_what_was_expected(
    tmp_path: Path, arguments: list[str], message: str
) -> None:
    environ = {**os.environ, "SAGEMAKER_BASE_DIR": str(tmp_path / "base"), "HOME": str(tmp_path)}

    done = subprocess.run(
        [sys.executable, "-m", "toolkit", "profile", *arguments],
        env={**environ, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert done.returncode == UserError.exit_code
    assert message in done.stderr


def test_the_traces_of_all_ranks_of_a_job_that_has_ended_become_one_file(tmp_path: Path) -> None:
    job = tmp_path / "job"
    for rank, host in enumerate(("algo-1", "algo-2")):
        folder = job / "hosts" / host / "opt/ml/output/profiler/framework/steps-1-2"
        folder.mkdir(parents=True)
        (folder / f"{host}_rank-{rank}.pt.trace.json.gz").write_bytes(gzip.compress(made.document([], rank=rank)))
    command = [sys.executable, "-m", "toolkit", "profile", "job", "--merge", "all.json.gz"]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(tmp_path)}

    done = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    none = subprocess.run(
        [*command, "--ranks", "7"], env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=120
    )

    assert (done.returncode, done.stdout) == (0, "steps-1-2: 2 ranks: all.json.gz\n"), done.stderr
    events = json.loads(gzip.decompress((tmp_path / "all.json.gz").read_bytes()))["traceEvents"]
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert names == ["rank 0 of algo-1", "rank 1 of algo-2"]
    assert none.returncode == UserError.exit_code and "expected traces of ranks, found none" in none.stderr


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_a_job_of_another_user_is_named_with_the_user(tmp_path: Path) -> None:
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        pytest.skip("no setpriv (util-linux)")
    rights = "-all,+dac_read_search"  # To read this interpreter's files; none to look at another user's processes.
    other = (setpriv, "--reuid=65534", "--regid=65534", "--clear-groups", f"--bounding-set={rights}")
    command = (*other, f"--inh-caps={rights}", f"--ambient-caps={rights}", sys.executable, "-m", "toolkit", "profile")
    with subprocess.Popen(["train", "60"], executable="/bin/sleep") as job:
        done = subprocess.run(
            command,
            env={**os.environ, "SAGEMAKER_BASE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=120,
        )
        job.kill()

    assert done.returncode == UserError.exit_code
    assert f"{tmp_path}: expected a job of this user, nobody, found processes of root" in done.stderr
    assert "Run the same as that user: sudo -u root toolkit profile ..., in a container docker exec" in done.stderr
