"""Log rules and stragglers in a running job (docs/rules.md has the rules themselves, tests/train/log_rules their every
case)."""

import contextlib
import json
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.train.base import Base
from tests.train.live import live


def rules(base: Base, **rule: object) -> dict[str, str]:
    path = base.folder / "rules.json"
    path.write_text(json.dumps([{"name": "watched", **rule}]))
    return {"TOOLKIT_RULES": str(path)}


@pytest.mark.parametrize(("action", "status"), [("stop", 124), ("no-retry", 93)])
def test_a_rule_ends_the_job_with_the_code_of_its_action(base: Base, action: str, status: int) -> None:
    base.program("import time\nprint('uncorrectable ECC error', flush=True)\ntime.sleep(600)\n")

    done = base.train(rules(base, pattern="ECC error", action=action))

    assert done.status == status
    assert done.failure is not None
    assert done.failure.startswith("HealthRule:")
    assert "rule watched" in done.failure


@pytest.mark.parametrize("action", ["label", "warn"])
def test_a_rule_that_only_speaks_ends_nothing(base: Base, action: str) -> None:
    base.program("print('a slow step')\n")

    done = base.train(rules(base, pattern="slow", action=action))

    assert done.status == 0
    assert b"rule watched" in done.stderr


def test_silence_is_found_without_a_line(base: Base) -> None:
    base.program("import time\ntime.sleep(600)\n")

    done = base.train(rules(base, pattern="step", expected_start_within_s=1, action="stop"))

    assert done.status == 124
    assert done.failure is not None
    assert "late start" in done.failure


def test_a_wrong_document_of_rules_is_said_before_the_start(base: Base) -> None:
    base.program("print('started')\n")

    done = base.train(rules(base, pattern="("))

    assert done.status == 78
    assert b"started" not in done.stdout
    assert done.failure is not None
    assert "rules.json" in done.failure


def test_a_relative_path_starts_from_the_code_folder(base: Base) -> None:
    base.program("print('a slow step')\n")
    (base.code / "rules").mkdir()
    (base.code / "rules/mine.json").write_text('[{"name": "watched", "pattern": "slow"}]')

    done = base.train(TOOLKIT_RULES="rules/mine.json")

    assert done.status == 0
    assert b"rule watched" in done.stderr


def test_a_path_that_is_nowhere_is_said_with_where_it_starts(base: Base) -> None:
    base.program("print('started')\n")

    done = base.train(TOOLKIT_RULES="rules.toml")

    assert (done.status, done.stdout) == (78, b"")
    assert done.failure is not None
    assert "TOOLKIT_RULES: rules.toml: expected a readable file, found none (No such file or directory)" in done.failure
    assert f"A relative path starts from the code folder, {base.code}." in done.failure


def test_a_rank_slower_than_its_peers_is_named(base: Base) -> None:
    pytest.importorskip("torch")
    base.hyperparameters({"sagemaker_pytorch_ddp_enabled": "true", "sagemaker_mpi_num_of_processes_per_host": "3"})
    base.document("metric-definition-regex.json", [{"Name": "step_time", "Regex": "step_time=([0-9.]+)"}])
    base.program(
        "import os\nrank = int(os.environ['RANK'])\n"
        "for step in range(60): print(f'step_time={0.3 if rank == 2 else 0.1}', flush=True)\n"
    )

    done = base.train(TOOLKIT_STRAGGLER_STEPS="10")

    assert b"rule straggler, straggler (rank 2)" in done.stderr
    assert b"straggler (rank 0)" not in done.stderr
    assert done.status == 0


METRIC = "for step in range(30): print('step_time={seconds}', flush=True)\n"
BEATS = (
    "import time\nfrom toolkit import status\nends, step = time.monotonic() + 7, 0\n"
    "while time.monotonic() < ends: time.sleep({seconds}); step += 1; status.heartbeat(step)\n"
)


@pytest.mark.parametrize(
    ("slow", "way", "rows"), [("algo-1", METRIC, 10), ("algo-2", METRIC, 10), ("algo-2", BEATS, 3)]
)
def test_a_host_slower_than_the_others_is_named_by_the_leader_and_to_itself(
    tmp_path: Path, slow: str, way: str, rows: int
) -> None:
    names = ("algo-1", "algo-2", "algo-3")
    port = str(free_port())
    addresses = ",".join(f"{name}=127.0.0.1" for name in names)
    with contextlib.ExitStack() as stack:
        running = {}
        for name in names:
            base = Base(tmp_path / name)
            base.resources(names, current=name)
            if way == METRIC:
                base.document("metric-definition-regex.json", [{"Name": "step_time", "Regex": "step_time=([0-9.]+)"}])
            base.program(way.format(seconds=0.3 if name == slow else 0.1))
            environ = {
                "TOOLKIT_LINK_PORT": port,
                "TOOLKIT_HOST_ADDRESSES": addresses,
                "TOOLKIT_STRAGGLER_STEPS": str(rows),
            }
            running[name] = stack.enter_context(live(base, **environ))
        done = {name: end.end() for name, end in running.items()}

    message = f"rule straggler, straggler (rank 0 of host {slow}): rank 0 of host {slow} took 0.3".encode()
    assert {name for name, end in done.items() if message in end.stderr} == {"algo-1", slow}
    assert all(end.stderr.count(b"rule straggler") <= 1 for end in done.values())
    assert {end.status for end in done.values()} == {0}
