"""Each adaptation of transformers is made by itself: a release that lacks one method gets the others."""

import sys
from functools import cached_property
from types import ModuleType
from typing import Any

import pytest

from toolkit.rank.frameworks import transformers

METHODS = {
    "_wrap_model": transformers.replace_model_wrapping,
    "_load_from_checkpoint": transformers.replace_checkpoint_loading,
    "_clip_grad_norm": transformers.replace_gradient_clipping,
    "_get_grad_norm": transformers.replace_gradient_norm,
}


def make_module(monkeypatch: pytest.MonkeyPatch, name: str, **classes: type) -> ModuleType:
    package = ModuleType("transformers")
    vars(package)["__version__"] = "6.1.0"
    monkeypatch.setitem(sys.modules, "transformers", package)
    module = ModuleType(name)
    vars(module).update(classes)
    return module


@pytest.mark.parametrize("missing", METHODS)
def test_without_one_method_of_the_trainer_the_others_are_replaced(
    missing: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    present = METHODS.keys() - {missing}
    kind = type("Trainer", (), {name: lambda _, name=name: name for name in present})
    module = make_module(monkeypatch, "transformers.trainer", Trainer=kind)

    for replace in METHODS.values():
        replace(module, lambda original: lambda trainer: f"around {original(trainer)}")

    trainer: Any = kind()
    assert {getattr(trainer, name)() for name in present} == {f"around {name}" for name in present}
    assert not hasattr(kind, missing)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"[toolkit] transformers.trainer 6.1.0 has no Trainer.{missing}: Trainer ")
    assert line.endswith("(read in transformers 5.23)")


class Arguments:
    @cached_property
    def _setup_devices(self) -> str:
        return "cuda"

    @property
    def device(self) -> str:
        return self._setup_devices


def test_the_arguments_have_the_chosen_device_or_transformers_own(monkeypatch: pytest.MonkeyPatch) -> None:
    kind: Any = type("TrainingArguments", (Arguments,), {"use_cpu": False})
    module = make_module(monkeypatch, "transformers.training_args", TrainingArguments=kind)

    transformers.replace_device_setup(module, lambda arguments: "cpu" if arguments.use_cpu else None)

    arguments = kind()
    assert arguments.device == "cuda"
    arguments = kind()
    arguments.use_cpu = True
    assert (arguments.device, arguments.distributed_state) == ("cpu", None)


def test_arguments_without_the_device_setup_stay_as_they_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = make_module(monkeypatch, "transformers.training_args", TrainingArguments=type("TrainingArguments", (), {}))

    transformers.replace_device_setup(module, lambda _: "cpu")

    said = capsys.readouterr().err
    assert said.startswith("[toolkit] transformers.training_args 6.1.0 has no TrainingArguments._setup_devices: ")
    assert said.count("\n") == 1
