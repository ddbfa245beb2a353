"""The profiling pass, on models in this process; the decision of a job is made by its first rank."""

import random
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from toolkit.errors import ContractError
from toolkit.parallelism import decision as decisions
from toolkit.parallelism import parameters
from toolkit.parallelism.tree import Module
from toolkit.rank.frameworks.torch import modules
from toolkit.rank.modelparallel.errors import SMPError
from toolkit.rank.modelparallel.torch.deciding import decide, fingerprint, measure
from toolkit.rank.modelparallel.torch.partitioned import apply_partitions

pytestmark = pytest.mark.torch
WIDTH, ROWS, FLOAT = 32, 8, 4
PLAIN = {"trace_device": "gpu", "trace_execution_times": False, "trace_memory_usage": False}


class Slow(nn.Module):
    """Sleeps forward and backward, of which no operation tells."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))
        self.seconds = seconds

    def forward(self, x: torch.Tensor) -> Any:
        return _Sleep.apply(x, self.seconds) * self.weight  # type: ignore[no-untyped-call]


class _Sleep(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: torch.Tensor, seconds: float) -> torch.Tensor:
        context.seconds = seconds
        time.sleep(seconds)
        return x.clone()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> Any:
        time.sleep(2 * context.seconds)
        return gradient, None


class Model(nn.Module):
    """Registered in another order than it runs; a module used twice, one in a list, one recomputed, tied weights."""

    def __init__(self, slow_s: float = 0.02) -> None:
        super().__init__()
        self.head = nn.Linear(WIDTH, 50, bias=False)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Dropout(0.5)) for _ in range(2)
        )
        self.embed = nn.Embedding(50, WIDTH)
        self.twice = nn.Linear(WIDTH, WIDTH)
        self.slow = Slow(slow_s)
        self.recomputed = Slow(slow_s)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> Any:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        x = self.twice(torch.relu(self.twice(x)))
        x = checkpoint(self.recomputed, self.slow(x), use_reentrant=False)
        return self.head(x)


def here(folder: Path, is_profile: bool = False, **options: Any) -> Any:
    """Return what `decide` needs of a World."""
    cfg = parameters.read({"partitions": 2, **options})
    return SimpleNamespace(folder=folder, is_profile=is_profile, cfg=cfg)


def once(model: nn.Module) -> Callable[[], None]:
    ids = torch.arange(ROWS)
    return lambda: nn.functional.cross_entropy(model(ids), ids).backward()  # type: ignore[no-untyped-call]


def by_name(tree: Module) -> dict[str, Module]:
    return {module.name: module for module in tree.walk()}


def test_the_pass_measures_order_calls_bytes_and_time_of_every_module_once() -> None:
    model = Model(0.3)

    tree = measure(model, once(model))

    modules = by_name(tree)
    assert modules.keys() == {path for path, _ in model.named_modules()}
    assert [child.name for child in tree.children] == ["embed", "blocks", "twice", "slow", "recomputed", "head"]
    assert [modules[name].calls for name in ("", "blocks", "blocks.0", "twice", "recomputed")] == [1, 0, 1, 2, 1]
    assert modules["blocks.0"].sequential and not modules["blocks"].sequential and not tree.sequential
    rows = ROWS * WIDTH * FLOAT
    assert (modules["twice"].input_bytes, modules["twice"].output_bytes) == (2 * rows, 2 * rows)
    assert tree.parameter_bytes == sum(parameter.numel() * FLOAT for parameter in model.parameters())
    assert (modules["embed"].shares, modules["head"].shares) == (("head",), ("embed",))
    assert (modules["embed"].parameter_bytes, modules["head"].parameter_bytes) == (50 * WIDTH * FLOAT, 0)
    # Forward 0.3 s and backward 0.6 s; the recomputed one runs forward twice.
    assert modules["slow"].compute_s >= 0.9 and modules["recomputed"].compute_s >= 1.2
    assert modules["blocks.0.0"].compute_s == modules["blocks.1.0"].compute_s > 0  # Equal modules: the fastest's time.
    assert max(modules[name].compute_s for name in ("embed", "blocks", "twice", "head")) < 0.9
    assert tree.compute_s >= modules["slow"].compute_s + modules["recomputed"].compute_s
    # The first call of `twice` saves what it gets. The second gets what relu has saved, in the root.
    assert modules["twice"].activation_bytes == rows
    assert modules["slow"].activation_bytes == rows
    assert modules["recomputed"].activation_bytes == 0


def test_untimed_computing_is_estimated_by_operations_and_untraced_memory_by_outputs_and_both_are_repeatable() -> None:
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
    x = torch.randn(16, 64)

    one, other = (measure(model, lambda: model(x).sum().backward(), times=False, memory=False) for _ in range(2))

    assert one == other
    first, activation, _ = one.children
    assert first.compute_s == pytest.approx(3 * (2 * 16 * 64 * 256 / 1e11 + 16 * 256 * FLOAT / 1e10))
    assert activation.activation_bytes == activation.output_bytes == 16 * 256 * FLOAT
    assert one.activation_bytes == sum(child.output_bytes for child in one.children)


def test_the_pass_leaves_no_trace_in_random_numbers_buffers_and_gradients(tmp_path: Path) -> None:
    torch.manual_seed(1)
    random.seed(1)
    model = Model()
    model.twice.bias.grad = torch.ones(WIDTH)
    old_state = {name: value.clone() for name, value in model.state_dict().items()}
    states = torch.get_rng_state(), random.getstate()

    def step() -> None:
        random.random()
        once(model)()

    decide(model, step, here(tmp_path), {**PLAIN, "trace_execution_times": True})

    assert torch.equal(torch.get_rng_state(), states[0]) and random.getstate() == states[1]
    assert all(torch.equal(value, old_state[name]) for name, value in model.state_dict().items())
    assert {name for name, parameter in model.named_parameters() if parameter.grad is not None} == {"twice.bias"}
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_a_decision_is_written_and_is_the_input_of_the_next_job_unless_the_model_is_another(tmp_path: Path) -> None:
    model = Model()
    first = decide(model, once(model), here(tmp_path / "one"), PLAIN)
    file = tmp_path / "one" / decisions.FILE
    assert decisions.read(file) == first
    assert len(set(first.assignment.values())) == 2 and first.cuts

    def never() -> None:
        raise AssertionError("the profiling pass ran")

    again = decide(Model(), never, here(tmp_path / "two", partition_file=str(file)), PLAIN)
    assert again == first == decisions.read(tmp_path / "two" / decisions.FILE)

    wider = Model()
    wider.twice = nn.Linear(WIDTH, WIDTH, bias=False)
    untied = Model()
    untied.head.weight = nn.Parameter(untied.head.weight.clone())
    assert len({fingerprint(variant) for variant in (model, wider, untied)}) == 3
    with pytest.raises(
        ContractError, match=rf"partition_file.*{fingerprint(wider)}, found one for {first.fingerprint}"
    ):
        decide(wider, never, here(tmp_path, partition_file=str(file)), PLAIN)
    with pytest.raises(ContractError, match="expected a decision for 3 partitions, found one for 2"):
        decide(model, never, here(tmp_path, partition_file=str(file), partitions=3), PLAIN)
    with pytest.raises(ContractError, match=rf"{Path.cwd()}/none.json: .*found no readable file"):
        decide(model, never, here(tmp_path, partition_file="none.json"), PLAIN)


def test_the_profiling_job_times_and_traces_memory_and_ends_with_its_decision_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = Model()

    with pytest.raises(SystemExit) as exit_info:
        decide(model, once(model), here(tmp_path, is_profile=True, partition_file="old.json"), PLAIN)

    assert exit_info.value.code == 0
    assert str(tmp_path / decisions.FILE) in capsys.readouterr().err
    decision = decisions.read(tmp_path / decisions.FILE)
    assert decision.tree is not None
    assert by_name(decision.tree)["slow"].compute_s >= 0.06
    assert "computing timed, activations as saved" in decision.profiled_by


@pytest.mark.parametrize("options", [{"skip_tracing": True}, {"tensor_parallel_degree": 2}, {}])
def test_a_model_that_cannot_or_must_not_run_whole_is_divided_by_bytes_of_parameters(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    model = nn.Sequential(*(nn.Linear(16, 16, device=None if options else "meta") for _ in range(4)))

    def never() -> None:
        raise AssertionError("the profiling pass ran")

    decision = decide(model, never, here(tmp_path, **options), PLAIN)

    assert decision.assignment == {"": 0, "2": 1, "3": 1}
    assert "by bytes of parameters alone" in decision.profiled_by


class Borrows(nn.Module):
    """Computes with the embedding's weight, which it does not hold, and with attention, which takes its child's."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.wide = nn.Linear(WIDTH, 4 * WIDTH)
        self.narrow = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, ids: torch.Tensor) -> Any:
        x = self.embed(ids)[None]
        x = self.attention(x, x, x)[0]
        return self.narrow(self.wide(x))[0] @ self.embed.weight.t()


def test_a_module_is_on_the_device_of_the_one_that_computes_with_its_parameters(tmp_path: Path) -> None:
    model = Borrows()

    for partitions in (2, 3):
        decision = decide(model, once(model), here(tmp_path, partitions=partitions), PLAIN)

        assert decision.tree is not None
        assert by_name(decision.tree)["embed"].shares == ("",)
        assert by_name(decision.tree)["attention.out_proj"].shares == ("attention",)
        assert decision.device_of("embed") == decision.device_of("") == 0
        assert decision.device_of("attention") == decision.device_of("attention.out_proj")
        assert {decision.device_of(name) for name, _ in model.named_modules()} == set(range(partitions))
    unmeasured = by_name(measure(model, None))
    assert unmeasured["attention.out_proj"].shares == ("attention",)


def test_a_torch_that_lacks_a_private_name_partitions_no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modules, "REQUIRED", ("_gone",))

    with pytest.raises(SMPError, match=r"has no nn\.Module\._gone: install .* set the parameter partitions to 1$"):
        apply_partitions(nn.Linear(2, 2), {"": 1}, 0, torch.device("cpu"), lambda *_: None)
