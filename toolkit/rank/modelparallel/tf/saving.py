"""Checkpoints of a divided model, each rank writing its own part, and the whole model as a SavedModel.

A checkpoint number N is a TensorFlow checkpoint for each partition: `<name>-N_<partition>_of_<partitions>`. A value's
key holds the path of its layer, not its partition: a job may resume on another number of partitions.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from toolkit.folders import fail, matching
from toolkit.rank.modelparallel import objects, world
from toolkit.rank.modelparallel.errors import SMPError
from toolkit.rank.modelparallel.tf import layers
from toolkit.rank.modelparallel.tf.partitioned import empty, fill
from toolkit.rank.modelparallel.tf.running import RUNNING

KIND = "tf-values"  # of the messages that carry variables' values
CHECKPOINTS = "/opt/ml/checkpoints"
MODEL = "/opt/ml/model"


class CheckpointManager:
    """Saves and restores *checkpoint*, a tf.train.Checkpoint of the model, optimizers and variables, in *directory*.

    *max_to_keep*: the newest so many are kept; None: all. All ranks of a model make one and call it together.
    """

    def __init__(
        self,
        checkpoint: Any,
        directory: str = CHECKPOINTS,
        max_to_keep: int | None = None,
        checkpoint_name: str = "ckpt",
    ) -> None:
        if max_to_keep is not None and max_to_keep < 1:
            raise SMPError(f"CheckpointManager: expected max_to_keep 1 or more, or None, found {max_to_keep}")
        self._checkpoint = checkpoint
        self._directory = Path(directory)
        self._most = max_to_keep
        self._name = checkpoint_name

    @property
    def latest(self) -> int | None:
        """The number of the newest complete checkpoint, None without one."""
        return max(self._complete(), default=None)

    def save(self) -> str:
        """Write the next checkpoint, and return its path without the partition. The first replica writes."""
        here = world.current()
        number = (self.latest or 0) + 1
        objects.barrier(objects.CommGroup.WORLD)  # All have seen the same newest one.
        if here.rank_in("rdp") == 0:
            self._directory.mkdir(parents=True, exist_ok=True)
            self._write(number, here.rank_in("pp"), here.cfg.partitions)
        objects.barrier(objects.CommGroup.WORLD)
        if here.rank_in("rdp") == 0 and self._most is not None:
            self._remove_all_but(self._most, here.rank_in("pp"))
        objects.barrier(objects.CommGroup.WORLD)
        return str(self._directory / f"{self._name}-{number}")

    def restore(self, number: int | None = None) -> int | None:
        """Load checkpoint *number*, None: the newest; return its number, None if there is none.

        Before the model's first step it is remembered, and loaded when the model has been partitioned.

        Raises:
            SMPError: there is no complete checkpoint of that number, or a value is missing or of another shape.
        """
        number = self.latest if number is None else number
        if number is None:
            return None
        if number not in self._complete():
            raise SMPError(f"{self._directory}: expected a complete checkpoint {self._name}-{number}, found none")
        for model in self._models():
            if not model.smp_partition.is_settled:
                model.register_post_partition_hook(lambda: self._load(number))
                return number
        self._load(number)
        return number

    def _remove_all_but(self, most: int, part: int) -> None:
        """Remove this partition's files but those of the newest *most* checkpoints."""
        mine: dict[int, list[Path]] = {}
        for path in self._files(f"*_{part}_of_*"):
            digits = path.name.removeprefix(f"{self._name}-").partition("_")[0]
            if digits.isdigit():
                mine.setdefault(int(digits), []).append(path)
        for number in sorted(mine)[:-most]:
            for path in mine[number]:
                path.unlink()

    def _models(self) -> list[Any]:
        return [held for _, held in self._held() if hasattr(held, "smp_partition")]

    def _held(self) -> list[tuple[str, Any]]:
        children = self._checkpoint._trackable_children()
        return sorted((name, held) for name, held in children.items() if name != "save_counter")

    def _files(self, pattern: str) -> list[Path]:
        """Return the files of these checkpoints whose names match *pattern*, sorted."""
        paths = matching(self._directory, pattern, fail)
        return [path for path in paths if path.name.startswith(f"{self._name}-")]

    def _complete(self) -> set[int]:
        """Return the numbers of the checkpoints of which all partitions' files are here."""
        parts: dict[tuple[int, int], set[int]] = {}
        pattern = re.compile(rf"{re.escape(self._name)}-(\d+)_(\d+)_of_(\d+)\.index")
        for path in self._files("*.index"):
            if match := pattern.fullmatch(path.name):
                number, part, count = map(int, match.groups())
                parts.setdefault((number, count), set()).add(part)
        return {number for (number, count), found in parts.items() if len(found) == count}

    def _write(self, number: int, part: int, parts: int) -> None:
        import tensorflow as tf

        values = {key: layers.stored(variable).read_value() for key, variable in self._values()}
        tf.raw_ops.SaveV2(
            prefix=str(self._directory / f"{self._name}-{number}_{part}_of_{parts}"),
            tensor_names=list(values),
            shape_and_slices=[""] * len(values),
            tensors=list(values.values()),
        )

    def _load(self, number: int) -> None:
        import tensorflow as tf

        with tf.init_scope():
            self._build_optimizers()
            paths = [path for path in self._files("*_of_*.index") if path.name.startswith(f"{self._name}-{number}_")]
            readers = [tf.train.load_checkpoint(str(path.with_suffix(""))) for path in paths]
            there = {key: reader for reader in readers for key in reader.get_variable_to_shape_map()}
            where = f"{self._directory / self._name}-{number}"
            for key, variable in self._values():
                if key not in there:
                    raise SMPError(
                        f"{where}: expected a value for {key}, found none: the checkpoint is of another model"
                    )
                value = there[key].get_tensor(key)
                its = layers.stored(variable)
                if tuple(value.shape) != tuple(its.shape):
                    raise SMPError(
                        f"{where}: expected shape {tuple(its.shape)} for {key}, found {tuple(value.shape)}: the "
                        "checkpoint is of another model"
                    )
                its.assign(value)

    def _build_optimizers(self) -> None:
        """Make the optimizers' variables, which else their first update makes."""
        mine = [variable for model in self._models() for variable in model.trainable_variables]
        for _, held in self._held():
            if hasattr(held, "apply_gradients"):
                if hasattr(held, "build"):
                    if not getattr(held, "built", False) and not getattr(held, "_built", False):
                        held.build(mine)
                else:
                    held._create_all_weights(mine)

    def _values(self) -> Iterator[tuple[str, Any]]:
        """Yield (key, variable) of everything that this rank saves."""
        seen: dict[str, int] = {}

        def unique(key: str) -> str:
            seen[key] = seen.get(key, -1) + 1
            return f"{key}#{seen[key]}" if seen[key] else key

        for name, held in self._held():
            if hasattr(held, "smp_partition"):
                for path, variable in named(held):
                    yield unique(f"{name}/{path}"), variable
            elif hasattr(held, "apply_gradients"):
                for variable in held.variables() if callable(held.variables) else held.variables:
                    yield unique(f"{name}/{self._slot(held, variable)}"), variable
            elif hasattr(held, "assign"):
                yield unique(name), held
            else:
                raise SMPError(
                    f"CheckpointManager: expected models, optimizers and variables, found {type(held).__name__} for "
                    f"{name}. Save it by itself."
                )

    def _slot(self, optimizer: Any, variable: Any) -> str:
        """Return the key of *variable*, *optimizer*'s: its name, with the path of the layer in place of Keras's name
        of the model's variable, which has numbers over all models of the process."""
        label = _label(variable).removeprefix(f"{optimizer.name}/")
        known = [(_label(its), path) for model in self._models() for path, its in named(model)]
        for text, path in sorted(known, key=lambda each: -len(each[0])):
            for spelled in (text, text.replace("/", "_")):
                if spelled in label:
                    return label.replace(spelled, path)
        return label


def _label(variable: Any) -> str:
    return str(getattr(variable, "path", variable.name)).partition(":")[0]


def named(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield (key, variable) of the variables that this rank holds of *model*; a key is the same on any partition."""
    for path, layer in layers.paths(model).items():
        for number, variable in enumerate(layers.own_variables(layer)):
            if model.smp_partition.is_local(variable):
                yield f"{path}/{number}", variable


def save_model(model: Any, save_path: str = MODEL) -> None:
    """Write the whole *model* with its weights to *save_path* as a SavedModel. All ranks call it; rank 0 writes.

    Rank 0 has all variables in memory meanwhile.

    Raises:
        SMPError: the model was not partitioned yet.
    """
    here = world.current()
    if not model.smp_partition.is_settled:
        raise SMPError("save_model: expected a model that has run a step, found one that has not")
    if here.rank_in("rdp"):
        return
    mine = dict(named(model))
    if here.rank_in("pp"):
        here.messenger.send(here.group("pp")[0], KIND, None, {key: _numpy(value) for key, value in mine.items()})
        return
    others = [here.messenger.receive(rank, KIND).payload for rank in here.group("pp")[1:]]
    given = {key: value for values in others for key, value in values.items()}
    with RUNNING.whole():
        away = [(variable, given[key]) for key, variable in named(model) if key not in mine]
        for variable, value in away:
            fill(variable, value)
        try:
            _save_whole(model, save_path)
        finally:
            for variable, _ in away:
                empty(variable)


def _numpy(variable: Any) -> Any:
    return layers.stored(variable).numpy()


def _save_whole(model: Any, save_path: str) -> None:
    if hasattr(model, "export") and layers.keras().__name__ != "tf_keras":
        model.export(save_path, verbose=False)
    else:
        model.save(save_path, save_format="tf")
    sys.stderr.write(f"[toolkit] smp: the whole model is in {save_path}\n")
