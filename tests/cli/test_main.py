"""`toolkit` and `train` as a person types them: what a wrong word leads to, and where help is."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands.simulate.toolkit_run import ToolkitRun
from tests.train.base import Base
from tests.train.test_stop_early import until
from toolkit import __version__
from toolkit.cli.main import COMMANDS, main

ROOT = Path(__file__).parents[2]
TRAIN = (sys.executable, "-c", "from toolkit.cli.main import train; train()")


def run_toolkit(
    *words: str, command: tuple[str, ...] = (sys.executable, "-m", "toolkit"), **environ: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*command, *words],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **environ},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("run t.py --nhosts 2", "toolkit run: error: unknown option --nhosts. Did you mean --hosts?"),
        ("run t.py --processes_per_host 2", "unknown option --processes_per_host. Did you mean --processes-per-host?"),
        ("run t.py --nproc_per_node=2", "unknown option --nproc_per_node. Did you mean --processes-per-host?"),
        ("run t.py --xyz", "unknown option --xyz\nTo give it to the script: --hyperparameter xyz=true\n"),
        (
            "run t.py --epochs 5 --lr=.1 --amp",
            "To give it to the script: --hyperparameter epochs=5 --hyperparameter lr=.1",
        ),
        ("run t.py --epochs 5 --lr=.1 --amp", " --hyperparameter amp=true\n"),
        ("run t.py --n 5", "To give it to the script: --hyperparameter n=5\n"),
        ("run t.py --batch-size 32", "unknown option --batch-size\n"),
        ("run t.py --data d", "unknown option --data. Did you mean --channel?"),
        ("run t.py --gpus 2", "unknown option --gpus\n"),
        ("run t.py --stop 5s", "unknown option --stop. Did you mean --stop-after?"),
        ("logs", "found 'logs'. Did you mean toolkit attach?"),
        ("run t.py --batch-size 32", "\nTo give it to the script: --hyperparameter batch-size=32\n"),
        ("run t.py --db_password hunter2hunter2", "--hyperparameter 'db_password=******'\n"),
        ("run t.py epochs=5", "unexpected argument 'epochs=5'\nTo give it to the script: --hyperparameter epochs=5\n"),
        ("check --epochs 5", "toolkit check: error: unknown option --epochs. Options: --help, --json\n"),
        ("run t.py --hosts two", "argument --hosts: expected a whole number, found 'two'"),
        ("run t.py 2", "toolkit run: error: unexpected argument '2'"),
        ("run", "the following arguments are required: SCRIPT|JOB"),
        ("rn t.py", f"toolkit: error: expected one of {', '.join(COMMANDS)}, found 'rn'. "),
        ("rn t.py", "Did you mean run?"),
        ("--hosts 2", "toolkit: error: "),
        ("train.py", "Did you mean toolkit run train.py?"),
        ("jobs/digits.toml --hosts 2", "Did you mean toolkit run jobs/digits.toml?"),
        ("render jobsett j.toml", "batch, ray, compose, found 'jobsett'. Did you mean jobset?"),
        ("metrics try l --metrics a=b", "toolkit metrics try: error: unknown option --metrics. Did you mean --metric?"),
        ("check --jsn", "toolkit check: error: unknown option --jsn. Did you mean --json?"),
    ],
)
def test_a_wrong_word_is_named_with_the_choices_or_the_nearest(
    words: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(words.split())

    error = capsys.readouterr().err
    assert caught.value.code == 78
    assert expected in error
    assert error.splitlines()[-1].startswith("For help: toolkit")


def test_python_m_toolkit_is_toolkit() -> None:
    done = run_toolkit("--version")

    assert (done.returncode, done.stdout) == (0, f"{__version__}\n")


@pytest.mark.parametrize("words", [("--help",), ("-h",), ("train", "--help")])
def test_train_knows_help(words: tuple[str, ...]) -> None:
    done = run_toolkit(*words, command=TRAIN)

    assert done.returncode == 0
    assert done.stdout.startswith("usage: train\n")
    assert max(map(len, done.stdout.splitlines())) <= 120


def test_train_knows_its_version_and_imports_nothing_for_it() -> None:
    code = "import sys; from toolkit.cli.main import train\ntry: train()\nfinally: print(*sys.modules)"
    done = run_toolkit("--version", command=(sys.executable, "-c", code))

    version, modules = done.stdout.splitlines()
    assert (done.returncode, version) == (0, __version__)
    assert {"argparse", "toolkit.train.walk", "msgspec"}.isdisjoint(modules.split())


@pytest.mark.parametrize(
    ("words", "notes"),
    [(("train",), 0), (("train", "train"), 0), (("--epochs", "sesame-open-9"), 1), (("train", "serve", "--help"), 1)],
)
def test_train_ignores_other_arguments_and_says_so(words: tuple[str, ...], notes: int, tmp_path: Path) -> None:
    base = Base(tmp_path)
    base.program("print('trained')\n")

    done = base.train(command=[*TRAIN, *words])

    assert (done.status, done.stdout) == (0, b"trained\n")
    assert done.stderr.count(b"takes no arguments") == notes
    assert b"sesame" not in done.stderr


def test_a_shell_completes_options_and_commands() -> None:
    pytest.importorskip("argcomplete")

    for line, expected in (
        ("toolkit run --ho", "--hosts"),
        ("toolkit rend", "render"),
        ("toolkit render --cl", "--claim"),
    ):
        code = "import os; os.dup2(1, 8); from toolkit.cli.main import main; main()"
        words = {"COMP_LINE": line, "COMP_POINT": str(len(line)), "_ARGCOMPLETE": "1", "_ARGCOMPLETE_IFS": " "}
        done = run_toolkit(command=(sys.executable, "-c", code), **words)
        assert done.stdout.split() == [expected]


def test_a_dry_run_shows_the_plan_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/a").touch()
    words: tuple[str, ...] = ("--dry-run", "--hosts", "2", "--distribution", "torchrun", "--hyperparameter", "steps=2")
    temporary = tmp_path / ("elsewhere" * 11)  # So long that a line of the plan is cut within it.
    temporary.mkdir()
    words = (*words, "--channel", "train=data", "--name", "counting")
    with ToolkitRun(tmp_path, "counts_to.py", *words, TMPDIR=str(temporary)) as job:
        assert job.end() == 0

    assert job.console.startswith(f"counting: 2 hosts, in {tmp_path}/job; host algo-1:\n\nlauncher: torchrun\n")
    assert "counts_to.py --steps 2" in " ".join(job.console.split())
    (path,) = [line for line in job.console.splitlines() if "env: PYTHONPATH=" in line]
    assert "elsewhere" not in path
    assert not job.folder.exists()


def test_a_dry_run_of_containers_judges_no_python_but_the_images(tmp_path: Path) -> None:
    words = ("--dry-run", "--backend", "docker", "--image", "mine:1", "--distribution", "torchrun", "--hosts", "2")
    with ToolkitRun(tmp_path, "counts_to.py", *words) as job:
        assert job.end() == 0

    rows = [line.split()[1] for line in job.console.splitlines() if line.startswith(("ok ", "warn ", "fail "))]
    assert rows == ["documents", "code"]
    assert "mine:1 was not inspected" in job.console
    assert "launcher:" not in job.console


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--channel", "train=nowhere"), "expected a file or folder for channel train"),
        (("--hosts", "0"), "--hosts: "),
        (("--source", "broken", "broken.py"), "broken.py: line 1: '(' was never closed"),
    ],
)
def test_a_dry_run_ends_with_78_where_the_job_is_wrong(words: tuple[str, ...], message: str, tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/broken.py").write_text("print(\n")
    program = str(tmp_path / "broken/broken.py") if words[-1] == "broken.py" else "counts_to.py"
    words = words[:-1] if words[-1] == "broken.py" else words

    with ToolkitRun(tmp_path, program, "--dry-run", *words) as job:
        assert job.end() == 78

    assert message in job.console
    assert not job.folder.exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_dry_run_that_is_ended_by_a_signal_leaves_no_folder(number: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "tmp").mkdir()
    hangs = tmp_path / "bin/nvidia-smi"
    hangs.write_text(f"#!/bin/sh\ntouch {tmp_path}/asked\nexec sleep 60\n")
    hangs.chmod(0o755)
    environ = {"TMPDIR": str(tmp_path / "tmp"), "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}

    with ToolkitRun(tmp_path, "counts_to.py", "--dry-run", **environ) as job:
        until((tmp_path / "asked").exists)
        assert [path.name[:16] for path in (tmp_path / "tmp").iterdir()] == ["toolkit-dry-run-"]
        job.signal(number)
        assert job.end() == 128 + number

    assert list((tmp_path / "tmp").iterdir()) == []
    assert "Traceback" not in job.console


def test_quiet_shows_the_end_alone(tmp_path: Path) -> None:
    with ToolkitRun(tmp_path, "counts_to.py", "--quiet", "--name", "counting", "--hyperparameter", "steps=1") as job:
        assert job.end() == 0

    assert job.console.startswith("\ncounting: Completed, exit code 0\n")
    assert "step=1 loss=1.0\n" in (job.folder / "logs/algo-1.log").read_text()


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("command", ["docs", "docs failures"])
def test_standard_output_that_takes_nothing_is_one_sentence(command: str, unbuffered: str) -> None:
    with Path("/dev/full").open("w") as full:
        completed = subprocess.run(
            [sys.executable, "-m", "toolkit.cli.main", *command.split()],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            cwd=ROOT,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        )

    assert (completed.returncode, completed.stderr) == (
        75,
        "[toolkit] error: the output cannot be written (No space left on device)\n",
    )


@pytest.mark.parametrize("command", ["run train.py", "report x", "check"])
def test_a_current_folder_that_was_removed_is_one_sentence(command: str, tmp_path: Path) -> None:
    """`check` has it as a line of its table, since `train` would find the same."""
    script = f"""
import os, sys
os.mkdir({str(tmp_path / "gone")!r}); os.chdir({str(tmp_path / "gone")!r}); os.rmdir(os.getcwd())
sys.path.insert(0, {str(ROOT)!r})
from toolkit.cli.main import main
main({command.split()!r})
"""
    completed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)

    assert completed.returncode == 78
    if command == "check":
        assert "expected a current folder, found that it was removed" in completed.stdout
        assert completed.stderr == ""
    else:
        assert completed.stderr == (
            "[toolkit] error: expected a current folder, found that it was removed. Change to another one.\n"
        )


def test_docs_shows_a_page_by_any_of_its_names(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs/orchestrators/slurm.md").read_text()
    for name in ("slurm", "orchestrators/slurm", "docs/orchestrators/slurm.md", "docs/orchestrators/slurm.md#ends"):
        with pytest.raises(SystemExit) as caught:
            main(["docs", name])
        assert (caught.value.code, capsys.readouterr().out) == (0, page)


def test_docs_lists_every_page(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["docs"])

    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert listed[:2] == ["readme", "changelog"]
    docs = ROOT / "docs"
    assert listed[2:] == [path.relative_to(docs).as_posix()[:-3] for path in sorted(docs.rglob("*.md"))]


def test_docs_suggests_a_page(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["docs", "setings"])

    assert caught.value.code == 78
    assert "found 'setings'. Did you mean settings?" in capfd.readouterr().err


def test_every_command_has_a_parser_or_is_taken_before_it() -> None:
    module_names = {path.stem.replace("_", "-") for path in (ROOT / "toolkit/cli").glob("*.py")}

    assert set(COMMANDS) - module_names == {"train", "mpi-agent"}
