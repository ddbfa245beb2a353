"""A job that has its models compiled: what the compiler did is in output/outcome.json."""

import json

import pytest

from tests.rank.compiler.ranks import NET, QUICK
from tests.rank.profiler.ranks import needs_torch
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
@pytest.mark.long
def test_under_torchrun_it_is_what_the_lowest_rank_did(base: Base) -> None:
    """torchrun imports torch, too, and compiles nothing."""
    base.hyperparameters({"sagemaker_torch_distributed_enabled": "true"})
    base.program(QUICK + NET + "train(Net(), 6)\n")

    done = base.train({"TOOLKIT_COMPILE": "on"}, deadline_s=240, TOOLKIT_PROCESSES_PER_HOST="2")

    assert done.status == 0, done.log
    compiler = done.outcome["compiler"]
    assert (compiler["state"], compiler["rank"], compiler["steps"]) == ("compiled", 0, 6)


@needs_torch
@pytest.mark.long
def test_debug_mode_keeps_torchs_graphs_code_and_reasons_in_the_output(base: Base) -> None:
    """Real code, by g++: what TrainingCompilerConfig(debug=True) sends."""
    base.hyperparameters(
        {"sagemaker_training_compiler_enabled": "true", "sagemaker_training_compiler_debug_mode": "true"}
    )
    base.program(NET + "model = Net()\ntrain(model, 4)\ntrain(model, 40, inputs=inputs[:12], targets=targets[:12])\n")

    done = base.train({"TOOLKIT_COMPILE_BUDGET_S": "600"}, deadline_s=400)

    assert done.status == 0, done.log
    price = "TOOLKIT_COMPILE=auto: compiling may cost this job up to 600 s (TOOLKIT_COMPILE_BUDGET_S)"
    assert done.log.count(price) == 1
    compiler = done.outcome["compiler"]
    folder = base.root / "output/data/compiler/rank-0"
    assert compiler["dump"] == str(folder) and compiler["cache"] == ""
    forward = next(folder.glob("**/*forward*"))
    assert "def call(" in (forward / "output_code.py").read_text()
    assert "class GraphModule" in (forward / "fx_graph_readable.py").read_text()
    reasons = json.loads((folder / "compilations.json").read_text())
    assert any("expected 16, actual 12" in (reason["recompile_reason"] or "") for reason in reasons["compilations"])
    assert all(reason["seconds"] > 0 for reason in reasons["compilations"])
    assert not list((base.root / "checkpoints").glob("compile-cache/**/*"))  # Nothing that a later job would find.


@needs_torch
@pytest.mark.long
def test_debug_mode_keeps_the_whole_error_of_a_model_that_does_not_compile(base: Base) -> None:
    base.hyperparameters(
        {"sagemaker_training_compiler_enabled": "true", "sagemaker_training_compiler_debug_mode": "true"}
    )
    refuses = "def _refuses(self, graph, inputs): raise RuntimeError('no code for this')\n"
    replaced = "torch._TorchCompileInductorWrapper.__call__ = _refuses\n"
    base.program(NET + refuses + replaced + "train(Net(), 6)\n")

    done = base.train(deadline_s=240)

    assert done.status == 0, done.log
    text = (base.root / "output/data/compiler/rank-0/failure.txt").read_text()
    assert "Net does not compile" in text and "in _refuses" in text
