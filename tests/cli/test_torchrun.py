"""`toolkit torchrun` in processes of its own, beside torch."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.ports import free_port

TOOLKIT = (sys.executable, "-m", "toolkit.cli.main", "torchrun")
WITHIN_S = 120
with_torch = [
    pytest.mark.torch,
    pytest.mark.skipif(
        not any((Path(folder) / "torch").is_dir() for folder in sys.path), reason="torch is not installed"
    ),
]
SAYS = """\
import json, os, sys
print("out", os.environ["RANK"], flush=True)
print("err", os.environ["RANK"], file=sys.stderr, flush=True)
with open("seen-" + os.environ["RANK"], "a") as file:
    print(json.dumps({"argv": sys.argv, "cwd": os.getcwd(), "environ": dict(os.environ)}), file=file)
"""


def start(folder: Path, *words: str, command: tuple[str, ...] = TOOLKIT, **variables: str) -> subprocess.Popen[str]:
    environ = {
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "TMPDIR": str(folder / "tmp"),
        "CUDA_VISIBLE_DEVICES": "",
        **variables,
    }
    (folder / "tmp").mkdir(exist_ok=True)
    return subprocess.Popen(
        [*command, *words],
        env=environ,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def end(process: subprocess.Popen[str]) -> tuple[int, str]:
    try:
        output, _ = process.communicate(timeout=WITHIN_S)
    finally:
        process.kill()
    return process.returncode, output


def run(folder: Path, *words: str, **variables: str) -> tuple[int, str]:
    return end(start(folder, *words, command=TOOLKIT, **variables))


def seen(folder: Path, rank: int) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / f"seen-{rank}").read_text().splitlines()]


def base_of(output: str) -> Path:
    """Return the folder that the first line names."""
    (line,) = (line for line in output.splitlines() if "logs go to " in line)
    return Path(line.rpartition("go to ")[2])


class TestWithTorch:
    pytestmark = with_torch

    def test_ranks_run_as_under_torchrun_and_their_output_goes_where_the_line_says(self, tmp_path: Path) -> None:
        (tmp_path / "train.py").write_text(SAYS)
        options = "--nproc_per_node=2 --log-dir=logs --redirects=0:2 --tee=1:3 --duplicate-stdout-filters=1"

        status, output = run(tmp_path, *options.split(), "train.py", "--lr", "0.1", SM_HPS="kept")

        assert status == 0, output
        environ = seen(tmp_path, 1)[0]["environ"]
        assert (seen(tmp_path, 1)[0]["argv"], seen(tmp_path, 1)[0]["cwd"]) == (
            ["train.py", "--lr", "0.1"],
            str(tmp_path),
        )
        assert [environ[name] for name in ("LOCAL_RANK", "WORLD_SIZE", "GROUP_RANK", "OMP_NUM_THREADS")] == list("1201")
        # A torchrun that the script starts would read PET_*, as the port of this one.
        assert [name for name in environ if name.startswith(("SM_", "NCCL_", "GLOO_", "PET_"))] == ["SM_HPS"]
        base = base_of(output)
        assert base.parent == tmp_path / "logs"
        files = {str(path.relative_to(base)): path.read_text() for path in base.glob("attempt_0/**/*.log")}
        host = os.uname().nodename
        assert files == {
            "attempt_0/0/stderr.log": "err 0\n",
            "attempt_0/1/stdout.log": "out 1\n",
            "attempt_0/1/stderr.log": "err 1\n",
            "attempt_0/filtered_stdout.log": f"[{host} rank 1] out 1\n",
        }
        shown = {line for line in output.splitlines() if " rank " in line}
        assert shown == {f"[{host} rank {text}" for text in ("0] out 0", "1] out 1", "1] err 1")}
        assert json.loads((base / "output/outcome.json").read_text())["status"] == "succeeded"

    def test_two_hosts_need_only_the_rendezvous_and_both_name_the_cause(self, tmp_path: Path) -> None:
        (tmp_path / "train.py").write_text(
            "import os, sys, time\nif os.environ['RANK'] == '1': raise ValueError('loss is nan')\ntime.sleep(100)\n"
        )
        line = f"--nnodes=2 --rdzv-id=job --rdzv-backend=c10d --rdzv-endpoint=localhost:{free_port()} train.py"

        hosts = [start(tmp_path, *line.split()) for _ in range(2)]

        for status, output in map(end, hosts):
            assert status == 1, output
            assert 'ErrorMessage "ValueError: loss is nan (at ' in output
            assert "host node-1, rank 1 (local rank 0)" in output

    def test_the_option_that_gives_a_taken_port_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "train.py").touch()

        with socket.create_server(("", 0)) as server:
            status, output = run(tmp_path, "--master-port", str(server.getsockname()[1]), "train.py")

        assert (status, "Give another --rdzv-endpoint or --master-port." in output) == (75, True), output

    @pytest.mark.long
    def test_restarts_are_as_many_as_the_line_allows_and_the_exit_code_is_the_scripts(self, tmp_path: Path) -> None:
        (tmp_path / "train.py").write_text(SAYS + "sys.exit(3)\n")

        status, output = run(tmp_path, "train.py", PET_MAX_RESTARTS="1", PET_TEE="1")

        assert status == 3, output
        names = ("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS")
        assert [[attempt["environ"][name] for name in names] for attempt in seen(tmp_path, 0)] == [
            ["0", "1"],
            ["1", "1"],
        ]
        written = sorted(base_of(output).glob("attempt_*/0/stdout.log"))
        assert [path.read_text() for path in written] == ["out 0\n"] * 2

    @pytest.mark.long
    @pytest.mark.parametrize(
        ("line", "argv"),
        [
            ("python -m torch.distributed.launch --nproc_per_node 2 train.py a", ["train.py", "--local-rank=1", "a"]),
            ("python -m torch.distributed.launch --use_env --nproc_per_node 2 train.py a", ["train.py", "a"]),
            ("torchrun --nproc_per_node 2 --no-python python -u train.py a", ["train.py", "a"]),
            ("python -m torch.distributed.run --nproc_per_node 2 -m train a", ["{cwd}/train.py", "a"]),
            ("torchrun --run-path --standalone --nproc_per_node 2 {cwd}/train.py a", ["{cwd}/train.py", "a"]),
        ],
    )
    def test_whole_lines(self, tmp_path: Path, line: str, argv: list[str]) -> None:
        (tmp_path / "train.py").write_text(SAYS)

        status, output = run(tmp_path, *line.replace("{cwd}", str(tmp_path)).split())

        assert status == 0, output
        assert seen(tmp_path, 1)[0]["argv"] == [word.replace("{cwd}", str(tmp_path)) for word in argv]


@pytest.mark.torch
@with_torch[1]
def test_each_job_of_a_script_has_a_run_of_its_own_in_trackers(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import json, os, pathlib\n"
        "(path,) = pathlib.Path(os.environ['TMPDIR']).rglob('exports-config.json')\n"
        "print('run', json.loads(path.read_text())['run'])\n"
    )

    status, output = run(tmp_path, "train.py", TOOLKIT_TENSORBOARD="events")

    assert status == 0, output
    base = base_of(output)
    assert base.name.startswith("train_")
    assert f"run {base.name}\n" in output


def test_the_shim_is_a_torchrun_and_replaces_no_other_program(tmp_path: Path) -> None:
    assert run(tmp_path, "--install-shim", "bin")[0] == 0
    assert run(tmp_path, "--install-shim", "bin")[0] == 0  # Again, as an image's build may.
    (tmp_path / "toolkit.py").write_text("raise SystemExit('the wrong toolkit')")

    status, output = end(start(tmp_path, "--nnodes", "1:4", "train.py", command=(str(tmp_path / "bin/torchrun"),)))

    assert (status, "--nnodes 1:4: expected one number" in output) == (78, True), output
    (tmp_path / "toolkit.py").unlink()
    (tmp_path / "bin/torchrun").write_text("#!/bin/sh\n")
    status, output = run(tmp_path, "--install-shim", "bin")
    assert (status, "found another program" in output) == (78, True), output
    assert (tmp_path / "bin/torchrun").read_text() == "#!/bin/sh\n"


def test_the_folder_in_a_place_of_all_is_this_users_alone(tmp_path: Path) -> None:
    """Its name can be foreseen: somebody else may have put a link there."""
    _, output = run(tmp_path, "missing.py")
    folder = base_of(output).parent
    assert (folder, folder.stat().st_mode & 0o777) == (tmp_path / f"tmp/toolkit-torchrun-{os.getuid()}", 0o700)
    (tmp_path / "trap").mkdir()
    folder.rename(tmp_path / "earlier")
    folder.symlink_to(tmp_path / "trap")

    _, output = run(tmp_path, "missing.py")

    assert "expected a folder of this user alone, found a link" in output
    assert not any((tmp_path / "trap").iterdir())
    assert base_of(output).parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("missing.py", "expected a script, found nothing at"),
        ("--no-python no-such-program", "found no 'no-such-program' in"),
        ("--no-python ./missing", "expected a script, found nothing at"),
        ("--log-dir full/x train.py", "Give another --log-dir"),
        ("--install-shim", "expected one folder, found 'nothing'"),
        ("no-such-python3 -m torch.distributed.run train.py", "expected a script, found nothing at"),
        ("/no/such/python3 -m torch.distributed.run train.py", "found no program '/no/such/python3'"),
        ("--nproc-per-node gpu train.py", "expected GPUs, found none"),
    ],
)
def test_a_wrong_line_ends_with_78_and_a_way_out(tmp_path: Path, words: str, message: str) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "full").touch()

    status, output = run(tmp_path, *words.split())

    assert status == 78, output
    assert message in output
    assert "Traceback" not in output
