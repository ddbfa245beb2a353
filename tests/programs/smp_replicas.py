"""Two ranks: gradients averaged by toolkit.rank.modelparallel.torch.replicas, against the mean of both ranks' gradients.

Prints what it measured as one JSON object; the test judges it.
"""

import copy
import json
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

from toolkit.rank.modelparallel.torch.averaging import Averager
from toolkit.rank.modelparallel.torch.replicas import equalise

CAP_MB = 0.0005
# "errors": by case, the largest difference of a gradient, 1 is the tolerated one; None: other parameters have gradients.
REPORT: dict[str, Any] = {"errors": {}}


class Branching(nn.Module):
    """The second layer is used only where `uses_second`; `again`: how often the first one is used."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.unused = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.uses_second, self.again = True, 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self.again):
            x = torch.tanh(self.first(x))
        return self.second(x) if self.uses_second else x


def gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}


def backward(model: nn.Module, seed: int, microbatches: int = 2) -> None:
    torch.manual_seed(seed)
    for _ in range(microbatches):
        model(torch.randn(4, 8)).pow(2).mean().backward()


def expected(model: Branching, seed: int, uses: tuple[bool, bool], microbatches: int = 2) -> dict[str, torch.Tensor]:
    both = []
    for rank in range(2):
        replica = copy.deepcopy(model)
        replica.zero_grad()
        replica.uses_second = uses[rank]
        backward(replica, seed + rank, microbatches)
        both.append(gradients(replica))
    names = both[0].keys() | both[1].keys()
    nothing = torch.zeros(())
    return {name: (both[0].get(name, nothing) + both[1].get(name, nothing)) / 2 for name in names}


def check(model: Branching, expected_gradients: dict[str, torch.Tensor], case: str, tolerance: float = 1e-6) -> None:
    model_gradients = gradients(model)
    has_same_names = model_gradients.keys() == expected_gradients.keys()
    errors = [
        float(((model_gradients[name] - gradient).abs() / (tolerance + tolerance * gradient.abs())).max())
        for name, gradient in expected_gradients.items()
        if has_same_names
    ]
    REPORT["errors"][case] = max(errors, default=0.0) if has_same_names else None


def main() -> None:
    dist.init_process_group("gloo")
    rank, group = dist.get_rank(), dist.group.WORLD
    torch.manual_seed(rank)
    model = Branching()
    old_values = [parameter.detach().clone() for parameter in model.parameters()]
    equalise(model.parameters(), group)
    same = [torch.equal(parameter, old) for parameter, old in zip(model.parameters(), old_values, strict=True)]
    REPORT["keeps its values"] = all(same)

    averager = Averager(model.parameters(), group, bucket_cap_mb=CAP_MB)
    REPORT["buckets"] = len(averager.buckets)
    REPORT["overlapped"] = []
    for step, uses in enumerate(
        [(True, True), (True, True), (False, True), (True, True), (False, False), (True, True)]
    ):
        expected_gradients = expected(model, 10 * step, uses)
        model.zero_grad()
        model.uses_second = uses[rank]
        backward(model, 10 * step + rank)
        averager.finish()
        check(model, expected_gradients, f"step {step}")
        REPORT["overlapped"].append(averager.overlapped)

    # More gradients than in the step before arrive after the reductions began.
    expected_gradients = expected(model, 100, (True, True), 5)
    model.zero_grad()
    backward(model, 100 + rank, 5)
    averager.finish()
    check(model, expected_gradients, "more microbatches")

    # Gradients of two steps add up, and are averaged once.
    first, second = expected(model, 110, (True, True)), expected(model, 120, (True, True))
    model.zero_grad()
    averager.finish(next_is_last=False)
    backward(model, 110 + rank)
    averager.hold(next_is_last=True)
    backward(model, 120 + rank)
    averager.finish()
    check(model, {name: first[name] + second[name] for name in first}, "two steps")
    averager.close()

    plain = Averager(model.parameters(), group, overlapping=False, bucket_cap_mb=25, as_bucket_view=True)
    REPORT["storages"] = []
    for step in (200, 210):
        expected_gradients = expected(model, step, (True, True))
        model.zero_grad(set_to_none=step == 200)
        backward(model, step + rank)
        plain.finish()
        REPORT["overlapped at the end of the step"] = plain.overlapped
        check(model, expected_gradients, f"views {step}")
        storages = {
            parameter.grad.untyped_storage().data_ptr()
            for parameter in model.parameters()
            if parameter.grad is not None
        }
        REPORT["storages"].append(len(storages))
    plain.close()

    hooked = Averager(model.parameters(), group)
    hooked.register_comm_hook(group, fp16_compress_hook)
    expected_gradients = expected(model, 300, (True, True))
    model.zero_grad()
    backward(model, 300 + rank)
    hooked.finish()
    check(model, expected_gradients, "fp16", tolerance=1e-2)
    model_gradients = gradients(model)
    REPORT["rounded"] = not all(
        torch.allclose(model_gradients[name], expected_gradients[name], rtol=1e-6, atol=1e-9)
        for name in expected_gradients
    )
    dist.destroy_process_group()
    print(json.dumps(REPORT))


if __name__ == "__main__":
    main()
