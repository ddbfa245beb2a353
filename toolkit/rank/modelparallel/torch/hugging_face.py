"""Adapts Hugging Face's Trainer to the library; nothing here changes how a model is trained.

In transformers 5.23 the device set-up knows only CUDA; _prepare_for_training makes no optimizer
(delay_optimizer_creation) though create_scheduler needs one; evaluation_loop wraps the bare model a second time;
_clip_grad_norm, but for fp16, takes the norm of one rank's gradients; _load_from_checkpoint asks for pytorch_model.bin,
which Trainer no longer writes.
"""

from pathlib import Path
from types import ModuleType
from typing import Any

from toolkit.folders import exists
from toolkit.rank.frameworks import transformers as private
from toolkit.rank.modelparallel.torch.model import DistributedModel


def adapt_arguments(module: ModuleType) -> None:
    """Let TrainingArguments choose the CPU on a machine without CUDA."""
    private.replace_device_setup(module, _choose_device)


def adapt_trainer(module: ModuleType) -> None:
    """Let Trainer make its optimizer once the model is wrapped, evaluate the model that it trains, clip by the norm of
    the whole model's gradients, and resume from the safetensors that it writes."""
    private.replace_model_wrapping(module, _make_wrapping)
    private.replace_checkpoint_loading(module, _make_loading)
    private.replace_gradient_clipping(module, lambda _: _clip_gradients)
    private.replace_gradient_norm(module, lambda _: _find_norm)


def _choose_device(arguments: Any) -> Any:
    import torch

    return None if torch.cuda.is_available() and not arguments.use_cpu else torch.device("cpu")


def _make_wrapping(original: Any) -> Any:
    def wrap(trainer: Any, model: Any, training: bool = True, dataloader: Any = None) -> Any:
        model_before = trainer.model_wrapped
        if isinstance(model_before, DistributedModel) and model_before.module is model:
            return model_before
        wrapped = original(trainer, model, training, dataloader)
        if training and trainer.optimizer is None:
            trainer.create_optimizer()
        return wrapped

    return wrap


def _make_loading(original: Any) -> Any:
    def load(trainer: Any, resume_from_checkpoint: str, model: Any = None) -> None:
        folder = Path(resume_from_checkpoint)
        weights = folder / "model.safetensors"
        if exists(folder / "pytorch_model.bin") or not exists(weights):
            original(trainer, resume_from_checkpoint, model)
            return
        from safetensors.torch import load_file

        # The file has tied weights once.
        (model or trainer.model_wrapped).load_state_dict(load_file(weights), strict=False)

    return load


def _clip_gradients(trainer: Any, _: Any) -> float:
    return float(trainer.optimizer.clip_master_grads(trainer.args.max_grad_norm))


def _find_norm(trainer: Any, _: Any, grad_norm: float | None = None) -> float:
    return float(trainer.optimizer.clip_master_grads(float("inf")) if grad_norm is None else grad_norm)
