"""The figures of a GPU's trace made by hand, and of a CPU's, beside torch's own."""

from pathlib import Path

import pytest

from tests.traces import made
from toolkit.traces import chrome, names
from toolkit.traces.figures import compute_figures

US = 1e-6


def test_a_gpu_s_time_is_told_by_kernel() -> None:
    figures = compute_figures(made.trace(made.gpu_step()))

    assert (figures.on, figures.launches) == ("gpu", 4)
    assert figures.span_s == pytest.approx(1000 * US)
    assert [
        (operator.calls, round(operator.total_s / US), round(operator.share, 3)) for operator in figures.operators
    ] == [
        (2, 400, 0.571),
        (1, 200, 0.286),
        (1, 100, 0.143),
    ]
    assert [operator.name for operator in figures.operators][1:] == [
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
        "at::native::vectorized_elementwise_kernel<CUDAFunctor_add>",
    ]
    assert [operator.communicates for operator in figures.operators] == [False, True, False]


def test_a_gpu_s_activity_adds_up_to_its_time() -> None:
    activity = compute_figures(made.trace(made.gpu_step())).activity

    assert activity is not None
    parts = [activity.kernel_s, activity.memcpy_s, activity.memset_s, activity.sync_s, activity.idle_s]
    assert [round(part / US) for part in parts] == [650, 50, 10, 50, 240]


def test_utilisation_over_time_has_the_active_share_as_its_mean() -> None:
    figures = compute_figures(made.trace(made.gpu_step()))

    assert figures.active_share == pytest.approx(0.71)
    assert sum(figures.utilisation) / len(figures.utilisation) == pytest.approx(0.71)
    assert figures.utilisation[:10] == pytest.approx((0.0,) * 10)
    assert figures.utilisation[10:50] == pytest.approx((1.0,) * 40)


def test_memory_operations_steps_and_annotations_are_told() -> None:
    figures = compute_figures(made.trace(made.gpu_step()))

    assert [
        (operator.name, operator.count, operator.bytes, round(operator.total_s / US)) for operator in figures.copies
    ] == [
        ("Memcpy HtoD (Pinned -> Device)", 2, 5_000_000, 150),
        ("Memset (Device)", 1, 512, 10),
    ]
    assert [(step.number, round(step.duration_s / US)) for step in figures.steps] == [(1, 1000)]
    assert [(operator.name, len(operator.durations_s)) for operator in figures.annotations] == [
        ("Forward", 1),
        ("Backward", 1),
    ]
    assert figures.queue_s == pytest.approx(10 * US)
    assert figures.launch_s == pytest.approx(16 * US)


def test_precision_is_guessed_by_the_kernel_s_name() -> None:
    figures = compute_figures(made.trace(made.gpu_step()))

    assert dict(figures.precisions) == {"bf16": pytest.approx(4 / 7), "fp32": pytest.approx(3 / 7)}


@pytest.mark.parametrize(
    ("kernel", "precision"),
    [
        ("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn", "bf16"),
        ("ampere_fp16_s16816gemm_fp16_64x64_ldg8_f2f_stages_64x5_tn", "fp16"),
        ("ampere_sgemm_128x64_tn", "fp32"),
        ("volta_h884gemm_256x64_ldg8_nn", "fp16"),
        ("cutlass_80_tensorop_s1688gemm_128x128_16x5_tn_align4", "tf32"),
        ("sm80_xmma_gemm_tf32f32_tf32f32_f32_tn_n_tilesize128x64x32", "tf32"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl(float)>", "fp32"),
        ("void at::native::elementwise<at::native::direct_copy<c10::BFloat16>>", "bf16"),
        ("void at::native::elementwise<at::native::direct_copy<c10::Half>>", "fp16"),
        ("sm90_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n", "fp8"),
        ("void at::native::reduce_kernel<double>", "fp64"),
        ("triton_poi_fused_add_0", "unknown"),
    ],
)
def test_a_precision_has_its_patterns(kernel: str, precision: str) -> None:
    assert names.guess_precision(kernel) == precision


def test_two_gpus_count_each_by_itself() -> None:
    events = [*made.kernel("a", 0, 100, launched=0, device=0), *made.kernel("b", 50, 50, launched=0, device=1)]

    figures = compute_figures(made.trace(events))

    assert figures.active_share == pytest.approx(0.75)
    assert figures.activity is not None
    assert figures.activity.kernel_s == pytest.approx(75 * US)
    assert figures.activity.idle_s == pytest.approx(25 * US)


def test_self_time_leaves_out_what_runs_within() -> None:
    events = [
        made.event("cpu_op", "outer", 0, 100),
        made.event("cpu_op", "inner", 10, 30),
        made.event("cpu_op", "innermost", 15, 5),
        made.event("cpu_op", "inner", 50, 50.5),  # It ends after its parent, as clocks are read.
        made.event("cpu_op", "outer", 20, 100, tid=99),
    ]

    figures = compute_figures(made.trace(events))

    times = {operator.name: (operator.calls, round(operator.total_s / US, 1)) for operator in figures.operators}
    assert times == {"outer": (2, 120.0), "inner": (2, 75.5), "innermost": (1, 5.0)}
    assert (figures.on, figures.activity, figures.precisions, figures.queue_s) == ("cpu", None, (), None)


def test_steps_named_by_annotations_are_steps() -> None:
    events = [
        made.event("user_annotation", name, 100 * place, 50) for place, name in enumerate(("step_1", "step_2", "x"))
    ]

    figures = compute_figures(made.trace(events))

    assert [(step.name, step.number) for step in figures.steps] == [("step_1", 1), ("step_2", 2)]
    assert [operator.name for operator in figures.annotations] == ["x"]


def test_a_trace_without_events_has_no_figures() -> None:
    figures = compute_figures(made.trace([]))

    assert (figures.span_s, figures.operators, figures.active_share, figures.steps) == (0, (), 0, ())


@pytest.mark.torch
def test_operators_of_a_real_trace_have_the_self_times_that_torch_gives_them(tmp_path: Path) -> None:
    import torch
    from torch.profiler import ProfilerActivity, profile, record_function

    model = torch.nn.Sequential(
        torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.LayerNorm(64), torch.nn.Linear(64, 4)
    )
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        for number in range(3):
            with record_function(f"ProfilerStep#{number}"), record_function("Forward"):
                loss = model(torch.randn(8, 32)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    path = tmp_path / "rank0.json.gz"
    profiler.export_chrome_trace(str(path))

    figures = compute_figures(chrome.read(path))

    theirs = {operator.key: operator for operator in profiler.key_averages() if operator.key.startswith("aten::")}
    operators = {operator.name: operator for operator in figures.operators if operator.name.startswith("aten::")}
    assert operators.keys() == theirs.keys()
    for name, operator in operators.items():
        assert (
            operator.calls >= theirs[name].count
        )  # torch joins a call with the only one within it, if of the same name.
        assert operator.total_s / US == pytest.approx(theirs[name].self_cpu_time_total, abs=0.1 * operator.calls + 1)
    assert [step.number for step in figures.steps] == [0, 1, 2]
    assert figures.memory[0].allocations > 10
    assert figures.memory[0].peak_bytes > 0
