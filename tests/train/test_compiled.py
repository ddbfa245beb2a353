"""A job that has its models compiled: what the compiler did is in output/outcome.json."""

from tests.compiler.ranks import NET, QUICK
from tests.profiler.ranks import needs_torch
from tests.train.base import Base


@needs_torch
def test_train_puts_it_into_outcome_json(base: Base) -> None:
    base.program(QUICK + NET + "train(Net(), 6)\n")

    done = base.train({"TOOLKIT_COMPILE": "on"}, deadline_s=240)

    assert done.status == 0, done.log
    compiler = done.outcome["compiler"]
    assert (compiler["state"], compiler["compile"], compiler["modules"]) == ("compiled", "on", ["Net"])
    assert compiler["compilations"] >= 1 and compiler["steps"] == 6


@needs_torch
def test_under_torchrun_it_is_what_the_lowest_rank_did(base: Base) -> None:
    """torchrun imports torch, too, and compiles nothing."""
    base.hyperparameters({"sagemaker_torch_distributed_enabled": "true"})
    base.program(QUICK + NET + "train(Net(), 6)\n")

    done = base.train({"TOOLKIT_COMPILE": "on"}, deadline_s=240, TOOLKIT_PROCESSES_PER_HOST="2")

    assert done.status == 0, done.log
    compiler = done.outcome["compiler"]
    assert (compiler["state"], compiler["rank"], compiler["steps"]) == ("compiled", 0, 6)
