"""LAMB and NovoGrad of smp.optimizers, in one process."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


def parameter(*values: float) -> Any:
    return torch.nn.Parameter(torch.tensor(values, dtype=torch.float64))


def stepped(optimizer: Any, gradients: list[Any]) -> Any:
    """Return the first parameter after steps with *gradients*."""
    (one,) = optimizer.param_groups[0]["params"]
    for gradient in gradients:
        one.grad = gradient.clone()
        optimizer.step()
    return one.detach()


GRADIENTS = [torch.tensor(each, dtype=torch.float64) for each in ([3.0, -4.0], [1.0, 2.0], [-0.5, 0.25])]


def test_lamb_without_decay_and_clipping_is_adam() -> None:
    from toolkit.rank.modelparallel.torch.optimizers import FusedLAMB

    ours = FusedLAMB([parameter(1.0, 2.0)], lr=0.1, weight_decay=0.0, max_grad_norm=0.0, eps=1e-8)
    adam = torch.optim.Adam([parameter(1.0, 2.0)], lr=0.1)

    assert torch.allclose(stepped(ours, GRADIENTS), stepped(adam, GRADIENTS), rtol=1e-12)


def test_lamb_moves_each_parameter_by_its_own_norm_and_clips_the_norm_of_all() -> None:
    from toolkit.rank.modelparallel.torch.optimizers import FusedLAMB

    moved = FusedLAMB([parameter(3.0, 4.0)], lr=0.1, weight_decay=0.5, eps=0.0)
    first = stepped(moved, GRADIENTS[:1])

    # The first step's update before the trust ratio: sign(g) + 0.5 w; its length becomes the parameter's, 5.
    update = torch.tensor([1 + 1.5, -1 + 2.0], dtype=torch.float64)
    assert torch.allclose(first, torch.tensor([3.0, 4.0], dtype=torch.float64) - 0.1 * 5 * update / update.norm())

    one, other = parameter(1.0), parameter(1.0)
    clipped = FusedLAMB([one, other], weight_decay=0.0, betas=(0.0, 0.0), bias_correction=False)
    one.grad, other.grad = torch.tensor([3.0]).double(), torch.tensor([4.0]).double()
    clipped.step()
    assert [round(float(clipped.state[each]["exp_avg"]), 12) for each in (one, other)] == [0.6, 0.8]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        # v = |g| = 5, corrected: 5 / sqrt(1 - 0.75) = 10; m = 0.5 g, corrected: g.
        ({}, [1 - 0.1 * 0.3, 2 + 0.1 * 0.4]),
        ({"weight_decay": 0.5}, [1 - 0.1 * (0.3 + 0.5), 2 - 0.1 * (-0.4 + 1)]),
        ({"weight_decay": 0.5, "reg_inside_moment": True}, [1 - 0.1 * (0.3 + 0.5), 2 - 0.1 * (-0.4 + 1)]),
        ({"norm_type": 0, "bias_correction": False}, [1 - 0.1 * 1.5 / 4, 2 + 0.1 * 2 / 4]),
        ({"init_zero": True, "bias_correction": False}, [1 - 0.1 * 1.5 / 2.5, 2 + 0.1 * 2 / 2.5]),
        ({"grad_averaging": False, "bias_correction": False}, [1 - 0.1 * 3 / 5, 2 + 0.1 * 4 / 5]),
    ],
)
def test_novograd_divides_a_gradient_by_its_norm(options: dict[str, Any], expected: list[float]) -> None:
    from toolkit.rank.modelparallel.torch.optimizers import FusedNovoGrad

    ours = FusedNovoGrad([parameter(1.0, 2.0)], lr=0.1, betas=(0.5, 0.75), eps=0.0, **options)

    assert stepped(ours, GRADIENTS[:1]).tolist() == pytest.approx(expected, rel=1e-12)


def test_what_the_optimizers_do_not_have_is_refused() -> None:
    from toolkit.rank.modelparallel.errors import SMPError
    from toolkit.rank.modelparallel.torch.optimizers import FusedLamb, FusedNovoGrad

    with pytest.raises(SMPError, match="FusedLAMB: expected amsgrad=False"):
        FusedLamb([parameter(1.0)], amsgrad=True)
    with pytest.raises(SMPError, match="norm_type 0 or 2, found 1"):
        FusedNovoGrad([parameter(1.0)], norm_type=1)
