"""The figures of a GPU's trace made by hand, and of a CPU's, beside torch's own."""

from pathlib import Path

import pytest

from tests.traces import made
from toolkit.traces import chrome, names
from toolkit.traces.figures import compute_figures

US = 1e-6


def test_a_gpu_s_time_is_told_by_kernel() -> None:
    found = compute_figures(made.trace(made.gpu_step()))

    assert (found.on, found.launches) == ("gpu", 4)
    assert found.span_s == pytest.approx(1000 * US)
    assert [(each.calls, round(each.total_s / US), round(each.share, 3)) for each in found.operators] == [
        (2, 400, 0.571),
        (1, 200, 0.286),
        (1, 100, 0.143),
    ]
    assert [each.name for each in found.operators][1:] == [
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
        "at::native::vectorized_elementwise_kernel<CUDAFunctor_add>",
    ]
    assert [each.communicates for each in found.operators] == [False, True, False]


def test_a_gpu_s_activity_adds_up_to_its_time() -> None:
    activity = compute_figures(made.trace(made.gpu_step())).activity

    assert activity is not None
    parts = [activity.kernel_s, activity.memcpy_s, activity.memset_s, activity.sync_s, activity.idle_s]
    assert [round(part / US) for part in parts] == [650, 50, 10, 50, 240]


def test_utilisation_over_time_has_the_active_share_as_its_mean() -> None:
    found = compute_figures(made.trace(made.gpu_step()))

    assert found.active_share == pytest.approx(0.71)
    assert sum(found.utilisation) / len(found.utilisation) == pytest.approx(0.71)
    assert found.utilisation[:10] == pytest.approx((0.0,) * 10)
    assert found.utilisation[10:50] == pytest.approx((1.0,) * 40)


def test_memory_operations_steps_and_annotations_are_told() -> None:
    found = compute_figures(made.trace(made.gpu_step()))

    assert [(each.name, each.count, each.bytes, round(each.total_s / US)) for each in found.copies] == [
        ("Memcpy HtoD (Pinned -> Device)", 2, 5_000_000, 150),
        ("Memset (Device)", 1, 512, 10),
    ]
    assert [(step.number, round(step.duration_s / US)) for step in found.steps] == [(1, 1000)]
    assert [(each.name, len(each.durations_s)) for each in found.annotations] == [("Forward", 1), ("Backward", 1)]
    assert found.queue_s == pytest.approx(10 * US)
    assert found.launch_s == pytest.approx(16 * US)


def test_precision_is_guessed_by_the_kernel_s_name() -> None:
    found = compute_figures(made.trace(made.gpu_step()))

    assert dict(found.precisions) == {"bf16": pytest.approx(4 / 7), "fp32": pytest.approx(3 / 7)}


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

    found = compute_figures(made.trace(events))

    assert found.active_share == pytest.approx(0.75)
    assert found.activity is not None
    assert found.activity.kernel_s == pytest.approx(75 * US)
    assert found.activity.idle_s == pytest.approx(25 * US)


def test_self_time_leaves_out_what_runs_within() -> None:
    events = [
        made.event("cpu_op", "outer", 0, 100),
        made.event("cpu_op", "inner", 10, 30),
        made.event("cpu_op", "innermost", 15, 5),
        made.event("cpu_op", "inner", 50, 50.5),  # It ends after its parent, as clocks are read.
        made.event("cpu_op", "outer", 20, 100, tid=99),
    ]

    found = compute_figures(made.trace(events))

    times = {each.name: (each.calls, round(each.total_s / US, 1)) for each in found.operators}
    assert times == {"outer": (2, 120.0), "inner": (2, 75.5), "innermost": (1, 5.0)}
    assert (found.on, found.activity, found.precisions, found.queue_s) == ("cpu", None, (), None)


def test_steps_named_by_annotations_are_steps() -> None:
    events = [
        made.event("user_annotation", name, 100 * place, 50) for place, name in enumerate(("step_1", "step_2", "x"))
    ]

    found = compute_figures(made.trace(events))

    assert [(step.name, step.number) for step in found.steps] == [("step_1", 1), ("step_2", 2)]
    assert [each.name for each in found.annotations] == ["x"]


def test_a_trace_without_events_has_no_figures() -> None:
    found = compute_figures(made.trace([]))

    assert (found.span_s, found.operators, found.active_share, found.steps) == (0, (), 0, ())


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

    found = compute_figures(chrome.read(path))

    theirs = {each.key: each for each in profiler.key_averages() if each.key.startswith("aten::")}
    ours = {each.name: each for each in found.operators if each.name.startswith("aten::")}
    assert ours.keys() == theirs.keys()
    for name, each in ours.items():
        assert each.calls >= theirs[name].count  # torch joins a call with the only one within it, if of the same name.
        assert each.total_s / US == pytest.approx(theirs[name].self_cpu_time_total, abs=0.1 * each.calls + 1)
    assert [step.number for step in found.steps] == [0, 1, 2]
    assert found.memory[0].allocations > 10
    assert found.memory[0].peak_bytes > 0
