"""DistributedOptimizer and checkpoints: parameters of partitions and replicas, against one process."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.rank.modelparallel.started import PROGRAMS, ended, smp_ranks

pytestmark = pytest.mark.torch

PROGRAM = PROGRAMS / "smp_training.py"


def test_partitions_replicas_and_shards_train_as_one_process_and_resume_on_other_partitions(tmp_path: Path) -> None:
    saved = tmp_path / "checkpoints"
    parameters: dict[str, Any] = {"partitions": 2, "microbatches": 2, "ddp": True, "shard_optimizer_state": True}

    trained = ended(smp_ranks(PROGRAM, str(saved), "train", parameters=parameters, size=4, folder=tmp_path))

    streams = [json.loads(out) for out, _ in trained]
    elements: list[int] = [rank["state_elements"] for rank in streams]
    assert max(elements) < 0.4 * sum(elements), elements
    assert {path.name for path in saved.iterdir()} == {
        "newest",
        "one",
        "optimizer_one",
        "user_content_one",
        "two",
        "optimizer_two",
        "user_content_two",
        "two_partial",
        "mine_0",
        "mine_1",
    }
    kinds = ("model_{}_0.pt", "optimizer_{}_0_0.pt", "optimizer_{}_0_1.pt")
    parts = {kind.format(pp) for kind in kinds for pp in (0, 1)} | {"user_content.pt"}
    assert {path.name for path in (saved / "two_partial").iterdir()} == parts
    wrong = streams[0]["refused"]
    assert "expected model files of 1 tensor parallel ranks" in wrong[0], wrong
    assert f"expected a checkpoint's file {saved / 'three'}, found none" in wrong[1]
    assert "expected a partial checkpoint" in wrong[2]
    assert f"{saved / 'nothing_0'}, found none" in wrong[3]
    assert wrong[4] == "no error"
    assert "releases before 1.10" in wrong[5]
    assert "expected a tag that can be a file's name, found 'a/b'" in wrong[6]
    assert "num_kept_partial_checkpoints of 1 or more" in wrong[7]

    parameters = {"partitions": 3, "microbatches": 2, "pipeline": "simple"}
    resumed = ended(smp_ranks(PROGRAM, str(saved), "resume", parameters=parameters, size=3, folder=tmp_path))
    for out, _ in resumed:  # On every rank, also where there is a part of its number.
        refused = json.loads(out)["refused"][4]
        assert "expected the parts of 3 partitions" in refused and "found those of 2 (partitions 0, 1 here)" in refused
        assert "use smp.save_checkpoint and smp.resume_from_checkpoint" in refused


def test_sharded_data_parallelism_trains_as_one_process_with_a_part_of_each_parameter(tmp_path: Path) -> None:
    parameters = {
        "partitions": 1,
        "microbatches": 2,
        "ddp": True,
        "sharded_data_parallel_degree": 2,
        "sdp_param_persistence_threshold": 20,
        "sdp_max_live_parameters": 600,
        "sdp_gradient_clipping": 0.5,
    }

    ended(smp_ranks(PROGRAM, str(tmp_path / "saved"), "spread", parameters=parameters, size=4, folder=tmp_path))


def test_the_models_keywords_say_when_and_how_replicas_average(tmp_path: Path) -> None:
    parameters = {"partitions": 1, "microbatches": 2, "ddp": True}

    ended(smp_ranks(PROGRAM, str(tmp_path), "keywords", parameters=parameters, size=2, folder=tmp_path))
