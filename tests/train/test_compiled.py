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
