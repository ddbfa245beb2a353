"""Adapts Hugging Face's Trainer to the library; nothing here changes how a model is trained.

Written for transformers 5.23 (training_args.py, trainer.py). There the device set-up knows only CUDA;
_prepare_for_training makes no optimizer (delay_optimizer_creation) though create_scheduler needs one; evaluation_loop
wraps the bare model a second time; _clip_grad_norm, but for fp16, takes the norm of one rank's gradients;
_load_from_checkpoint asks for pytorch_model.bin, which Trainer no longer writes.
"""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from toolkit.folders import exists
from toolkit.rank.modelparallel.torch.model import DistributedModel


def adapt_arguments(module: ModuleType) -> None:
    """Let TrainingArguments choose the CPU on a machine without CUDA."""
    import torch

    original = getattr(module.TrainingArguments, "_setup_devices", None)
    if original is None:
        _report_missing("TrainingArguments._setup_devices", "TrainingArguments chooses the device")
        return

    def device(arguments: Any) -> torch.device:
        if torch.cuda.is_available() and not arguments.use_cpu:
            default: torch.device = original.__get__(arguments, type(arguments))
            return default
        arguments.distributed_state = None
        arguments._n_gpu = 0
        return torch.device("cpu")

    replacement = type(original)(device)
    if hasattr(replacement, "__set_name__"):
        replacement.__set_name__(module.TrainingArguments, "_setup_devices")
    module.TrainingArguments._setup_devices = replacement


def adapt_trainer(module: ModuleType) -> None:
    """Let Trainer make its optimizer once the model is wrapped, evaluate the model that it trains, clip by the norm of
    the whole model's gradients, and resume from the safetensors that it writes."""
    wrap, load = (getattr(module.Trainer, name, None) for name in ("_wrap_model", "_load_from_checkpoint"))
    if wrap is None or load is None:
        name = "_wrap_model" if wrap is None else "_load_from_checkpoint"
        _report_missing(f"Trainer.{name}", "Trainer runs without the library's adaptations")
        return

    def _wrap_model(trainer: Any, model: Any, training: bool = True, dataloader: Any = None) -> Any:
        model_before = trainer.model_wrapped
        if isinstance(model_before, DistributedModel) and model_before.module is model:
            return model_before
        wrapped = wrap(trainer, model, training, dataloader)
        if training and trainer.optimizer is None:
            trainer.create_optimizer()
        return wrapped

    def _load_from_checkpoint(trainer: Any, resume_from_checkpoint: str, model: Any = None) -> None:
        folder = Path(resume_from_checkpoint)
        weights = folder / "model.safetensors"
        if exists(folder / "pytorch_model.bin") or not exists(weights):
            load(trainer, resume_from_checkpoint, model)
            return
        from safetensors.torch import load_file

        # The file has tied weights once.
        (model or trainer.model_wrapped).load_state_dict(load_file(weights), strict=False)

    def _clip_grad_norm(trainer: Any, _: Any) -> float:
        return float(trainer.optimizer.clip_master_grads(trainer.args.max_grad_norm))

    def _get_grad_norm(trainer: Any, _: Any, grad_norm: float | None = None) -> float:
        return float(trainer.optimizer.clip_master_grads(float("inf")) if grad_norm is None else grad_norm)

    module.Trainer._clip_grad_norm, module.Trainer._get_grad_norm = _clip_grad_norm, _get_grad_norm
    module.Trainer._wrap_model = _wrap_model
    module.Trainer._load_from_checkpoint = _load_from_checkpoint


def _report_missing(name: str, consequence: str) -> None:
    version = getattr(sys.modules.get("transformers"), "__version__", "")
    sys.stderr.write(f"[toolkit] smp: transformers {version} has no {name}: {consequence}\n")
