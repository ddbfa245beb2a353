"""Names of the library that this one refuses, with the reason."""

from typing import NoReturn

REASONS = {
    "optimizers": "FusedLamb and FusedNovoGrad are CUDA kernels of AWS's. Wrap an optimizer of torch: "
    "smp.DistributedOptimizer(torch.optim.AdamW(...))",
    "nn.FlashAttentionLayer": "smp.nn.DistributedAttentionLayer calls torch's scaled_dot_product_attention, which "
    "chooses flash attention itself (fused_softmax=True)",
    "nn.huggingface": "tensor parallel modules keep the names and shapes of the model that they replace in full "
    "checkpoints, so that there is nothing to translate. Register classes of your own with smp.tp_register",
}


def refuse_in_nn(name: str) -> NoReturn:
    """Raise AttributeError for *name* of smp.nn."""
    refuse(f"nn.{name}")


def refuse(name: str) -> NoReturn:
    """Raise AttributeError for *name*, with the reason if it is one of the library's."""
    why = REASONS.get(name, "docs/modelparallel.md has the names that are there (toolkit docs modelparallel)")
    raise AttributeError(f"smdistributed.modelparallel.torch has no {name}: {why}")
