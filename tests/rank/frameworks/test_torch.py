"""Private names of torch, and what happens if a release of torch does not have them."""

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from toolkit.rank.frameworks import private_names
from toolkit.rank.frameworks.private_names import MissingNameError
from toolkit.rank.frameworks.torch import autograd, compiler, distributed, modules, profiler, tensors

pytestmark = pytest.mark.torch


def double() -> Any:
    """Return a new autograd function."""

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return 2 * x

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            return 2 * gradient

    return Double


def test_hooks_of_a_functions_nodes_are_observed_and_work() -> None:
    function, notes = double(), []
    assert autograd.observe_node_hooks(function, lambda _, is_prehook: notes.append(is_prehook))
    x = torch.ones(2, requires_grad=True)
    y = function.apply(x)

    y.register_hook(lambda gradient: gradient * 3)
    y.grad_fn.register_hook(lambda inputs, _: None)
    y.sum().backward()

    assert autograd.is_node_of(y.grad_fn, function) and not autograd.is_node_of(y.sum().grad_fn, function)
    assert notes == [True, False]
    assert x.grad is not None and x.grad.tolist() == [6.0, 6.0]


@pytest.mark.parametrize("missing", ["register_hook", "register_prehook", "_register_hook_dict"])
def test_nothing_is_observed_if_a_method_is_missing(missing: str) -> None:
    class WithoutMethod:
        _backward_cls = type("Node", (), {})

    methods = {"register_hook", "register_prehook", "_register_hook_dict"} - {missing}
    originals = {name: object() for name in methods}
    for name, method in originals.items():
        setattr(WithoutMethod._backward_cls, name, method)

    assert not autograd.observe_node_hooks(WithoutMethod, lambda *_: None)  # type: ignore[arg-type]

    assert {name: vars(WithoutMethod._backward_cls)[name] for name in methods} == originals


def test_a_torch_without_nodes_of_functions_observes_nothing() -> None:
    assert not autograd.observe_node_hooks(object, lambda *_: None)  # type: ignore[arg-type]
    assert not autograd.is_node_of(object(), object)  # type: ignore[arg-type]


def test_a_module_runs_another_function_and_its_own_again() -> None:
    module = torch.nn.Linear(2, 2)
    x, plain = torch.ones(2), modules.get_call_impl(module)
    own = plain(x)

    modules.set_call_impl(module, lambda x: plain(x) + 1)

    assert modules.can_replace_calls("nothing is compiled")
    assert torch.equal(module(x), own + 1)
    modules.set_call_impl(module, None)
    assert torch.equal(module(x), own)


def test_a_tensor_that_a_graph_holds_is_swapped() -> None:
    a, b = torch.zeros(2, requires_grad=True), torch.ones(3)
    total = (2 * a).sum()

    tensors.swap_tensors(a, b)

    assert (a.tolist(), b.tolist()) == ([1.0, 1.0, 1.0], [0.0, 0.0])
    assert total.requires_grad


def test_sessions_of_the_profiler_are_watched_until_the_watch_ends() -> None:
    prepared: list[Any] = []
    session_class = profiler.require_session_class()
    unwatch = profiler.watch_sessions(session_class, prepared.append)

    with session_class(use_kineto=True) as session:
        assert profiler.is_session_open()
    unwatch()
    with session_class(use_kineto=True):
        pass

    assert prepared == [session]
    assert not profiler.is_session_open()


def test_this_torch_has_every_name_that_a_feature_needs() -> None:
    modules.require_partitioning_names()
    distributed.require_backend_names()
    profiler.require_session_class()
    assert compiler.get_recomputation_stops()
    assert autograd.can_number_nodes()


# Which name is taken away, the function that needs it, what it returns without, and what the log says is off.
LOST = [
    (
        torch.nn.Module,
        "_compiled_call_impl",
        lambda: modules.can_replace_calls("nothing is compiled"),
        False,
        "nothing",
    ),
    (torch._C, "_current_graph_task_id", lambda: compiler.find_graph_task()(), -1, "modules under activation"),
    (torch._C, "_get_tracing_state", lambda: compiler.find_tracing_state()(), None, "a model is traced"),
    (torch._C._autograd, "_get_sequence_nr", autograd.can_number_nodes, False, "the times of modules are estimated"),
    (torch._C, "_current_autograd_node", autograd.is_in_backward, False, "recomputed modules count"),
    (torch.autograd, "_profiler_enabled", profiler.is_session_open, False, "a profiler of the script's own"),
    (torch.autograd, "_add_metadata_json", lambda: profiler.add_metadata("name", "1"), None, "traces do not say"),
    (torch._C._autograd, "_clear_callbacks", profiler.clear_callbacks, None, "forked processes end"),
    (torch.autograd.Variable, "_execution_engine", profiler.find_engine_queue, None, "what ranks wait"),
    (
        torch.utils.data.dataloader,
        "_BaseDataLoaderIter",
        lambda: profiler.find_loader_iterator(torch.utils.data.dataloader),
        None,
        "the time in data loaders is not measured",
    ),
]


@pytest.mark.parametrize(("owner", "name", "use", "value", "consequence"), LOST, ids=[row[1] for row in LOST])
def test_a_missing_name_turns_one_feature_off_with_one_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    owner: Any,
    name: str,
    use: Callable[[], Any],
    value: Any,
    consequence: str,
) -> None:
    for cached in (private_names.report_missing, autograd._find_current_node):
        cached.cache_clear()
    monkeypatch.delattr(owner, name)

    values = [use(), use()]

    (line,) = capsys.readouterr().err.splitlines()
    assert values == [value, value]
    assert line.startswith("[toolkit] torch") and f"{torch.__version__} has no " in line
    assert f"{name}" in line and f": {consequence}" in line
    autograd._find_current_node.cache_clear()


def test_a_model_is_not_partitioned_by_a_torch_that_lacks_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modules, "REQUIRED", (*modules.REQUIRED, "_gone"))

    with pytest.raises(MissingNameError, match=r"^torch \S+ has no nn\.Module\._gone$"):
        modules.require_partitioning_names()


def test_a_group_of_ones_own_is_refused_by_a_torch_that_cannot_hold_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.distributed.ProcessGroup, "_register_backend")

    with pytest.raises(MissingNameError, match=r"has no ProcessGroup\._register_backend$"):
        distributed.require_backend_names()


def test_no_chain_is_run_by_stages_of_another_form(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from torch.distributed.pipelining import PipelineStage

    private_names.report_missing.cache_clear()
    monkeypatch.setattr(PipelineStage, "forward_one_chunk", lambda self, fwd_chunk_id, args, kwargs: None)

    assert not distributed.can_run_chains()
    assert "runs without torch's schedules, in the module server\n" in capsys.readouterr().err


def test_all_tensors_are_copied_without_torchs_call_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    targets, sources = [torch.zeros(2), torch.zeros(3)], [torch.ones(2), torch.ones(3)]
    monkeypatch.delattr(torch, "_foreach_copy_")

    tensors.copy_all(targets, sources)

    assert [target.tolist() for target in targets] == [[1.0, 1.0], [1.0, 1.0, 1.0]]
