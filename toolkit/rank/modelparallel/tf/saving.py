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
from toolkit.rank.frameworks import keras as private_keras
from toolkit.rank.modelparallel import objects, world
from toolkit.rank.modelparallel.errors import SMPError
from toolkit.rank.modelparallel.tf import layers
from toolkit.rank.modelparallel.tf.partitioned import empty, fill
from toolkit.rank.modelparallel.tf.running import PROCESS_STATE

KIND = "tf-values"  # of the messages that carry variables' values
CHECKPOINTS = "/opt/ml/checkpoints"
MODEL = "/opt/ml/model"


class CheckpointManager:
    """Saves and restores *checkpoint*, a tf.train.Checkpoint of the model, optimizers and variables, in *directory*.

    *max_to_keep*: the number of newest checkpoints that are kept; None: all. All ranks of a model make a manager and
    call it together.
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
        self._max_to_keep = max_to_keep
        self._name = checkpoint_name

    @property
    def latest(self) -> int | None:
        """The number of the newest complete checkpoint, None without one."""
        return max(self._complete_numbers(), default=None)

    def save(self) -> str:
        """Write the next checkpoint, and return its path without the partition. The first replica writes."""
        current_world = world.current()
        number = (self.latest or 0) + 1
        objects.barrier(objects.CommGroup.WORLD)  # All ranks have found the same newest checkpoint.
        if current_world.rank_in("rdp") == 0:
            self._directory.mkdir(parents=True, exist_ok=True)
            self._write(number, current_world.rank_in("pp"), current_world.cfg.partitions)
        objects.barrier(objects.CommGroup.WORLD)
        if current_world.rank_in("rdp") == 0 and self._max_to_keep is not None:
            self._remove_all_but(self._max_to_keep, current_world.rank_in("pp"))
        objects.barrier(objects.CommGroup.WORLD)
        return str(self._directory / f"{self._name}-{number}")

    def restore(self, number: int | None = None) -> int | None:
        """Load checkpoint *number*, None: the newest; return its number, None if there is none.

        Before the model's first step the number is remembered, and loaded when the model has been partitioned.

        Raises:
            SMPError: there is no complete checkpoint of that number, or a value is missing or of another shape.
        """
        number = self.latest if number is None else number
        if number is None:
            return None
        if number not in self._complete_numbers():
            raise SMPError(f"{self._directory}: expected a complete checkpoint {self._name}-{number}, found none")
        for model in self._models():
            if not model.smp_partition.is_settled:
                model.register_post_partition_hook(lambda: self._load(number))
                return number
        self._load(number)
        return number

    def _remove_all_but(self, count: int, part: int) -> None:
        """Remove this partition's files except those of the newest *count* checkpoints."""
        paths_by_number: dict[int, list[Path]] = {}
        for path in self._files(f"*_{part}_of_*"):
            digits = path.name.removeprefix(f"{self._name}-").partition("_")[0]
            if digits.isdigit():
                paths_by_number.setdefault(int(digits), []).append(path)
        for number in sorted(paths_by_number)[:-count]:
            for path in paths_by_number[number]:
                path.unlink()

    def _models(self) -> list[Any]:
        return [tracked for _, tracked in self._tracked() if hasattr(tracked, "smp_partition")]

    def _tracked(self) -> list[tuple[str, Any]]:
        import tensorflow as tf

        children = tf.train.TrackableView(self._checkpoint).children(self._checkpoint)
        return sorted((name, tracked) for name, tracked in children.items() if name != "save_counter")

    def _files(self, pattern: str) -> list[Path]:
        """Return the files of these checkpoints whose names match *pattern*, sorted."""
        paths = matching(self._directory, pattern, fail)
        return [path for path in paths if path.name.startswith(f"{self._name}-")]

    def _complete_numbers(self) -> set[int]:
        """Return the numbers of the checkpoints of which all partitions' files exist."""
        parts: dict[tuple[int, int], set[int]] = {}
        pattern = re.compile(rf"{re.escape(self._name)}-(\d+)_(\d+)_of_(\d+)\.index")
        for path in self._files("*.index"):
            if match := pattern.fullmatch(path.name):
                number, part, count = map(int, match.groups())
                parts.setdefault((number, count), set()).add(part)
        return {number for (number, count), saved_parts in parts.items() if len(saved_parts) == count}

    def _write(self, number: int, part: int, parts: int) -> None:
        import tensorflow as tf

        values = {key: layers.to_tf_variable(variable).read_value() for key, variable in self._values()}
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
            readers_by_key = {key: reader for reader in readers for key in reader.get_variable_to_shape_map()}
            checkpoint = f"{self._directory / self._name}-{number}"
            for key, variable in self._values():
                if key not in readers_by_key:
                    raise SMPError(
                        f"{checkpoint}: expected a value for {key}, found none: the checkpoint is of another model"
                    )
                value = readers_by_key[key].get_tensor(key)
                tf_variable = layers.to_tf_variable(variable)
                if tuple(value.shape) != tuple(tf_variable.shape):
                    raise SMPError(
                        f"{checkpoint}: expected shape {tuple(tf_variable.shape)} for {key}, "
                        f"found {tuple(value.shape)}: the checkpoint is of another model"
                    )
                tf_variable.assign(value)

    def _build_optimizers(self) -> None:
        """Make the optimizers' variables, which otherwise their first update makes."""
        trainable = [variable for model in self._models() for variable in model.trainable_variables]
        for _, tracked in self._tracked():
            if hasattr(tracked, "apply_gradients"):
                if hasattr(tracked, "build"):
                    if not getattr(tracked, "built", False):  # tf_keras's build notices by itself.
                        tracked.build(trainable)
                else:
                    private_keras.build_legacy_optimizer(tracked, trainable)

    def _values(self) -> Iterator[tuple[str, Any]]:
        """Yield (key, variable) of everything that this rank saves."""
        counts: dict[str, int] = {}

        def unique(key: str) -> str:
            counts[key] = counts.get(key, -1) + 1
            return f"{key}#{counts[key]}" if counts[key] else key

        for name, tracked in self._tracked():
            if hasattr(tracked, "smp_partition"):
                for path, variable in named_variables(tracked):
                    yield unique(f"{name}/{path}"), variable
            elif hasattr(tracked, "apply_gradients"):
                for variable in tracked.variables() if callable(tracked.variables) else tracked.variables:
                    yield unique(f"{name}/{self._slot(tracked, variable)}"), variable
            elif hasattr(tracked, "assign"):
                yield unique(name), tracked
            else:
                raise SMPError(
                    f"CheckpointManager: expected models, optimizers and variables, found {type(tracked).__name__} for "
                    f"{name}. Save it by itself."
                )

    def _slot(self, optimizer: Any, variable: Any) -> str:
        """Return the key of *variable*, *optimizer*'s: its name, with the path of the layer in place of Keras's name
        of the model's variable, which has numbers over all models of the process."""
        label = _label(variable).removeprefix(f"{optimizer.name}/")
        labels = [
            (_label(variable_of_model), path)
            for model in self._models()
            for path, variable_of_model in named_variables(model)
        ]
        for text, path in sorted(labels, key=lambda pair: -len(pair[0])):
            for spelling in (text, text.replace("/", "_")):
                if spelling in label:
                    return label.replace(spelling, path)
        return label


def _label(variable: Any) -> str:
    return str(getattr(variable, "path", variable.name)).partition(":")[0]


def named_variables(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield (key, variable) of the variables that this rank holds of *model*; a key is the same on any partition."""
    for path, layer in layers.paths(model).items():
        for number, variable in enumerate(layers.own_variables(layer)):
            if model.smp_partition.is_local(variable):
                yield f"{path}/{number}", variable


def save_model(model: Any, save_path: str = MODEL) -> None:
    """Write the whole *model* with its weights to *save_path* as a SavedModel. All ranks call it; rank 0 writes.

    During this call rank 0 has all variables in memory.

    Raises:
        SMPError: the model was not partitioned yet.
    """
    current_world = world.current()
    if not model.smp_partition.is_settled:
        raise SMPError("save_model: expected a model that has run a step, found one that has not")
    if current_world.rank_in("rdp"):
        return
    own_variables = dict(named_variables(model))
    if current_world.rank_in("pp"):
        current_world.messenger.send(
            current_world.group("pp")[0], KIND, None, {key: _to_numpy(value) for key, value in own_variables.items()}
        )
        return
    values_of_ranks = [current_world.messenger.receive(rank, KIND).payload for rank in current_world.group("pp")[1:]]
    values_by_key = {key: value for values in values_of_ranks for key, value in values.items()}
    with PROCESS_STATE.whole():
        missing = [
            (variable, values_by_key[key]) for key, variable in named_variables(model) if key not in own_variables
        ]
        for variable, value in missing:
            fill(variable, value)
        try:
            _save_whole(model, save_path)
        finally:
            for variable, _ in missing:
                empty(variable)


def _to_numpy(variable: Any) -> Any:
    return layers.to_tf_variable(variable).numpy()


def _save_whole(model: Any, save_path: str) -> None:
    if hasattr(model, "export") and layers.keras().__name__ != "tf_keras":
        model.export(save_path, verbose=False)
    else:
        model.save(save_path, save_format="tf")
    sys.stderr.write(f"[toolkit] smp: the whole model is in {save_path}\n")
