"""DistributedOptimizer and checkpoints: parameters of partitions and replicas, against one process."""

from pathlib import Path
from typing import Any

import pytest

from tests.rank.modelparallel.started import PROGRAMS, reports

pytestmark = pytest.mark.torch

Reports = list[dict[str, Any]]


def run(folder: Path, mode: str, size: int, **parameters: Any) -> Reports:
    """Return what each of *size* ranks of smp_training.py measured; *folder*: of its checkpoints."""
    parameters = {"microbatches": 2, **parameters}
    program = PROGRAMS / "smp_training.py"
    return reports(program, str(folder), mode, parameters=parameters, size=size, folder=folder.parent)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the checkpoints that `trained` saves."""
    return tmp_path_factory.mktemp("job") / "checkpoints"


@pytest.fixture(scope="module")
def trained(checkpoints: Path) -> Reports:
    """Two partitions of two replicas, which share the optimizer's state."""
    return run(checkpoints, "train", 4, partitions=2, ddp=True, shard_optimizer_state=True)


@pytest.fixture(scope="module")
def resumed(trained: Reports, checkpoints: Path) -> Reports:
    """Three partitions that resume from the checkpoints of two."""
    return run(checkpoints, "resume", 3, partitions=3, pipeline="simple")


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Reports:
    """Sharded data parallelism of degree 2 on four ranks."""
    parameters = {
        "ddp": True,
        "sharded_data_parallel_degree": 2,
        "sdp_param_persistence_threshold": 20,
        "sdp_max_live_parameters": 600,
        "sdp_gradient_clipping": 0.5,
    }
    return run(tmp_path_factory.mktemp("job") / "saved", "spread", 4, partitions=1, **parameters)


@pytest.fixture(scope="module")
def keywords(tmp_path_factory: pytest.TempPathFactory) -> Reports:
    """Two replicas of a model with keywords that say when and how they average."""
    return run(tmp_path_factory.mktemp("job") / "saved", "keywords", 2, partitions=1, ddp=True)


def wrong(reports: Reports) -> dict[str, float]:
    """Return the cases that differ from one process by more than is tolerated, by rank."""
    errors = {
        f"{case}, rank {rank}": error for rank, report in enumerate(reports) for case, error in report["errors"].items()
    }
    assert len(errors) > 1
    return {case: error for case, error in errors.items() if not error <= 1}


def test_partitions_replicas_and_shards_train_as_one_process(trained: Reports) -> None:
    assert wrong(trained) == {}


def test_replicas_begin_to_average_within_the_step(trained: Reports) -> None:
    assert min(report["overlapped"] for report in trained) > 1


def test_no_rank_holds_much_more_than_its_share_of_the_optimizers_state(trained: Reports) -> None:
    elements: list[int] = [report["state_elements"] for report in trained]

    assert max(elements) < 0.4 * sum(elements), elements


def test_a_checkpoint_is_a_folder_of_parts_or_files_of_the_whole(trained: Reports, checkpoints: Path) -> None:
    full = {name for tag in ("one", "two") for name in (tag, f"optimizer_{tag}", f"user_content_{tag}")}
    kinds = ("model_{}_0.pt", "optimizer_{}_0_0.pt", "optimizer_{}_0_1.pt")

    assert {path.name for path in checkpoints.iterdir()} == {*full, "newest", "two_partial", "mine_0", "mine_1"}
    parts = {path.name for path in (checkpoints / "two_partial").iterdir()}
    assert parts == {kind.format(pp) for kind in kinds for pp in (0, 1)} | {"user_content.pt"}


def test_a_rank_loads_the_file_that_it_saved(trained: Reports) -> None:
    first_replica = [report["loaded own file"] for report in trained if "loaded own file" in report]

    assert first_replica == [True, True]


def test_a_part_without_the_mark_of_one_is_taken_for_a_whole_state(trained: Reports) -> None:
    for report in trained:
        assert "without [" in report["part as a whole"]
        assert report["part as this rank's"]


def test_names_of_a_full_checkpoint_are_translated(trained: Reports) -> None:
    for report in trained:
        names = report["translated names"]
        assert "head.weight" in names["ours"]
        assert names["theirs"] == [f"other.{name}" for name in names["ours"]]


def test_a_checkpoint_that_lacks_a_name_is_refused(trained: Reports, resumed: Reports) -> None:
    assert all("without ['blocks.0.inner.bias']" in report["incomplete"] for report in trained)
    assert all("without ['blocks.3.inner.bias', 'embed.weight']" in report["incomplete"] for report in resumed)


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (0, "expected model files of 1 tensor parallel ranks"),
        (1, "expected a checkpoint's file {folder}/three, found none"),
        (2, "expected a partial checkpoint"),
        (3, "{folder}/nothing_0, found none"),
        (4, "no error"),
        (5, "releases before 1.10"),
        (6, "expected a tag that can be a file's name, found 'a/b'"),
        (7, "num_kept_partial_checkpoints of 1 or more"),
    ],
)
def test_what_cannot_be_saved_or_loaded_is_refused(
    trained: Reports, checkpoints: Path, number: int, message: str
) -> None:
    assert message.format(folder=checkpoints) in trained[0]["refused"][number]


def test_a_job_resumes_on_other_partitions_as_one_process(resumed: Reports) -> None:
    assert wrong(resumed) == {}


def test_the_scripts_own_content_comes_back(resumed: Reports, checkpoints: Path) -> None:
    assert [report["contents"] for report in resumed] == [[{"path": str(checkpoints)}] * 3] * 3


def test_the_optimizer_keeps_its_state_if_only_the_model_is_loaded(resumed: Reports) -> None:
    assert [report["learning rate without the optimizer's state"] for report in resumed] == [5.0] * 3


def test_parts_of_another_number_of_partitions_are_refused_on_every_rank(resumed: Reports) -> None:
    """Also where there is a part of its number."""
    for report in resumed:
        refused = report["refused"][4]
        assert "expected the parts of 3 partitions" in refused and "found those of 2 (partitions 0, 1 here)" in refused
        assert "use smp.save_checkpoint and smp.resume_from_checkpoint" in refused


def test_sharded_data_parallelism_trains_and_resumes_as_one_process(sharded: Reports) -> None:
    assert wrong(sharded) == {}


def test_a_rank_of_sharded_data_parallelism_holds_a_part_of_each_parameter(sharded: Reports) -> None:
    for report in sharded:
        assert report["elements"]["here"] < 0.6 * report["elements"]["in all"]


def test_parts_of_parameters_are_where_awss_scripts_look(sharded: Reports) -> None:
    for report in sharded:
        places = dict(report["as AWS's scripts look at norms"])
        assert places.pop("norm") > 0
        assert places.pop("ranks of a group") == 2
        assert set(places.values()) == {True}, places


def test_gradients_of_two_steps_are_averaged_once_over_replicas_and_not_over_microbatches(keywords: Reports) -> None:
    assert wrong(keywords) == {}
    assert [report["alike"] for report in keywords] == [[], []], "the replicas' own gradients differ"


def test_a_parameter_without_use_has_no_gradient(keywords: Reports) -> None:
    for names in (names for report in keywords for names in report["used"]):
        assert "unused.weight" not in names
        assert len(names) > 20


def test_gradients_are_views_of_one_bucket_if_the_model_says_so(keywords: Reports) -> None:
    for report in keywords:
        assert report["buckets"] == 1 < report["gradients"]


def test_replicas_keep_buffers_of_their_own_if_the_model_says_so(keywords: Reports) -> None:
    first, second = keywords[0]["statistics"]

    assert first != pytest.approx(second)


def test_a_registered_hook_averages_each_bucket_once(keywords: Reports) -> None:
    assert [report["hooked buckets"] for report in keywords] == [[0], [0]]
