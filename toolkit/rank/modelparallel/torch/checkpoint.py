"""Saving and resuming: smp.save, load, save_checkpoint and resume_from_checkpoint.

A partial checkpoint has each rank's part in a file of its own below PATH/TAG_partial; a full one has the whole model in
PATH/TAG, which torch.load and load_state_dict of plain PyTorch take, and the optimizer's whole state beside it. Either
can be resumed on another number of partitions. PATH/newest names the last complete one of each kind: it is written when
all files are.
"""

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from toolkit.folders import exists, fail, matching, named_elsewhere
from toolkit.rank.modelparallel import objects, ranks, world
from toolkit.rank.modelparallel.errors import SMPError
from toolkit.rank.modelparallel.torch import api
from toolkit.rank.modelparallel.torch.model import PARTIAL
from toolkit.rank.modelparallel.torch.optimizer import LOW_PRECISION, merge
from toolkit.rank.modelparallel.torch.step import get_runner

NEWEST = "newest"
USER_CONTENT = "user_content"
# A zip file ends with this record of 22 bytes, the last two of which are the length of the comment behind it.
ZIP_END = b"PK\5\6" + bytes(16)
NOTE = b"smp partitions "


def save(obj: Any, f: Any, partial: bool = True, v3: bool = False, **options: Any) -> None:
    """Save *obj* as torch.save does, with its *options*; the file appears when it is complete.

    *partial*: the file's name gets this rank's place in the model: `_<pp>`, with tensor parallelism `_<pp>_<tp>`, and
    with *v3* (optimizer states of shards) `_<pp>_<tp>_<rdp>`. Without *partial* each rank that calls this writes *f*.
    """
    path = Path(_partial_name(f, v3) if partial else f)
    part = path.with_name(f"{path.name}.{ranks.rank()}.part")
    torch.save(obj, part, **options)
    if partial:
        _note_partitions(part)
    part.replace(path)


def load(f: Any, map_location: Any = None, partial: bool = True, back_compat: bool = False, **options: Any) -> Any:
    """Return what `save` wrote to *f*, as torch.load does, with its *options*.

    Raises:
        SMPError: this rank has no file, the parts are those of another number of partitions, or (*back_compat*) an old
            release of the library wrote it.
    """
    if back_compat:
        raise SMPError(
            "smp.load: expected back_compat=False, found True: files of the library's releases before 1.10 cannot be "
            "read. Load the full model with torch.load and model.load_state_dict"
        )
    path = Path(f)
    if partial:
        names = [_partial_name(f, v3) for v3 in (True, False)]
        path = next((Path(name) for name in names if exists(name)), Path(names[-1]))
        _check_partitions(f, path)
    return _load(path, map_location or "cpu", **options)


def save_checkpoint(
    path: Any,
    tag: str,
    partial: bool = True,
    model: Any = None,
    optimizer: Any = None,
    user_content: Any = None,
    translate_if_full: bool = True,
    num_kept_partial_checkpoints: int | None = None,
) -> None:
    """Save *model*, *optimizer* and *user_content* (any object) below *path* as *tag*. All ranks call this together.

    A full checkpoint's model is what the functions in state.module_manager.translate_functions make of it,
    if *translate_if_full*. Of the partial checkpoints the last *num_kept_partial_checkpoints* are kept (None: all).

    Raises:
        SMPError: a wrong number of kept checkpoints, or a model before its first step.
    """
    if num_kept_partial_checkpoints is not None and num_kept_partial_checkpoints < 1:
        raise SMPError(
            f"smp.save_checkpoint: expected num_kept_partial_checkpoints of 1 or more, or None, found "
            f"{num_kept_partial_checkpoints!r}"
        )
    if "/" in tag or not tag:
        raise SMPError(f"smp.save_checkpoint: expected a tag that can be a file's name, found {tag!r}")
    root = Path(path)
    root.mkdir(parents=True, exist_ok=True)
    if partial:
        _save_partial(root / f"{tag}_partial", model, optimizer, user_content)
    else:
        _save_full(root, tag, model, optimizer, user_content, translate_if_full)
    objects.barrier()
    if ranks.local_rank() == 0:
        _write_newest(root, "partial" if partial else "full", tag)
        if partial and num_kept_partial_checkpoints is not None:
            _drop_old(root, num_kept_partial_checkpoints)
    objects.barrier()


def resume_from_checkpoint(
    path: Any,
    tag: str | None = None,
    partial: bool = True,
    strict: bool = True,
    load_optimizer: bool = True,
    load_sharded_optimizer_state: bool = True,
    translate_function: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
) -> Any:
    """Load a checkpoint of `save_checkpoint` into the DistributedModel and, if *load_optimizer*, its optimizer.

    Returns the checkpoint's user content, None if it has none. *tag* None: the newest. Before the model's first step
    the states are taken when it is partitioned. *strict* as in load_state_dict. *translate_function* makes the state of
    this model from a full one. *load_sharded_optimizer_state* False: of the optimizer only the fp32 master weights and
    the loss scale. A full checkpoint may be a model's state alone.

    Raises:
        SMPError: no checkpoint there, an incomplete one, or one of another model.
    """
    root = Path(path)
    kind = "partial" if partial else "full"
    if tag is None:
        tag = _read_newest(root).get(kind)
        if tag is None:
            raise SMPError(
                f"smp.resume_from_checkpoint: expected a {kind} checkpoint in {root}, found none named in "
                f"{root / NEWEST}: give the tag, or a path to which smp.save_checkpoint has saved one"
            )
    model = get_runner().model
    if model is None:
        raise SMPError("smp.resume_from_checkpoint: expected a DistributedModel before it, found none: wrap the model")
    if partial and translate_function is not None:
        raise SMPError("smp.resume_from_checkpoint: expected translate_function for a full checkpoint alone")
    checkpoint: _Partial | _Full = _Partial(root / f"{tag}_partial") if partial else _Full(root, tag)
    state = checkpoint.model()
    model.load_state_dict(translate_function(state) if translate_function else state, strict=strict)
    if load_optimizer and api.state.optimizer is not None:
        optimizer_state = checkpoint.optimizer(load_sharded_optimizer_state)
        if optimizer_state is None:
            world.say(
                f"smp.resume_from_checkpoint: {root / tag} has no optimizer's state beside it: the optimizer begins"
            )
        else:
            api.state.optimizer.load_state_dict(optimizer_state)
    return checkpoint.user_content()


def _save_partial(folder: Path, model: Any, optimizer: Any, user_content: Any) -> None:
    """Write this rank's files; the folder appears when all ranks have written theirs."""
    making = folder.with_name(folder.name + ".part")
    if ranks.local_rank() == 0:
        shutil.rmtree(making, ignore_errors=True)
        making.mkdir(exist_ok=True)
    objects.barrier()
    making.mkdir(exist_ok=True)
    position = f"{ranks.pp_rank()}_{ranks.tp_rank()}"
    if model is not None and (ranks.rdp_rank() == 0 or _is_spread()):
        suffix = f"{position}_{ranks.rdp_rank()}" if _is_spread() else position
        save(model.local_state_dict(), making / f"model_{suffix}.pt", partial=False)
    if optimizer is not None and (ranks.rdp_rank() == 0 or optimizer.is_sharded):
        state = optimizer.local_state_dict(gather_if_shard=False)
        suffix = f"{position}_{ranks.rdp_rank()}" if optimizer.is_sharded else position
        low = {name: state.pop(name) for name in LOW_PRECISION if name in state}
        save(state, making / f"optimizer_{suffix}.pt", partial=False)
        if low:
            save(low, making / f"fp16_states_{suffix}.pt", partial=False)
    if user_content is not None and ranks.local_rank() == 0:
        save(user_content, making / f"{USER_CONTENT}.pt", partial=False)
    objects.barrier()
    # On a shared file system rank 0's rename is everybody's; elsewhere each host has a folder of its own.
    if ranks.rank() == 0:
        _replace_folder(making, folder)
    objects.barrier()
    if ranks.local_rank() == 0 and exists(making):
        _replace_folder(making, folder)


def _save_full(root: Path, tag: str, model: Any, optimizer: Any, user_content: Any, translate: bool) -> None:
    state = {}
    if model is not None and (ranks.rdp_rank() == 0 or _is_spread()):
        state = model.state_dict(gather_to_rank0=True)
    if model is not None and ranks.rank() == 0:
        for function in api.state.module_manager.translate_functions if translate else ():
            state = function(state)
        save(state, root / tag, partial=False)
    if optimizer is not None and (ranks.rdp_rank() == 0 or optimizer.is_sharded):
        optimizer_state = optimizer.state_dict()
        if ranks.rank() == 0:
            save(optimizer_state, root / f"optimizer_{tag}", partial=False)
    if user_content is not None and ranks.rank() == 0:
        save(user_content, root / f"{USER_CONTENT}_{tag}", partial=False)


class _Partial:
    """The partial checkpoint in *folder*, read as a whole: files are mapped, so only what a rank takes is read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def model(self) -> dict[str, Any]:
        return {name: value for part in self._parts("model") for name, value in part.items() if name != PARTIAL}

    def optimizer(self, with_state: bool) -> dict[str, Any]:
        low = merge(self._parts("fp16_states")) if matching(self._folder, "fp16_states_*.pt", fail) else {}
        return {**low, **merge(self._parts("optimizer"))} if with_state else low

    def user_content(self) -> Any:
        path = self._folder / f"{USER_CONTENT}.pt"
        # The script's own object, of any class.
        return _load(path, "cpu", weights_only=False) if exists(path) else None

    def _parts(self, name: str) -> list[dict[str, Any]]:
        """Return the parts of all partitions (and shards) for this tensor parallel rank.

        With sharded data parallelism the one part is this rank's.
        """
        positions = {
            path: tuple(int(number) for number in path.stem.removeprefix(f"{name}_").split("_"))
            for path in matching(self._folder, f"{name}_*.pt", fail)
        }
        degree = len({position[1] for position in positions.values()})
        if degree != ranks.tp_size():
            problem = f"files of {degree} tensor parallel ranks" if positions else f"no file {name}_*.pt"
            raise SMPError(
                f"smp.resume_from_checkpoint: expected {name} files of {ranks.tp_size()} tensor parallel ranks in "
                f"{self._folder}, found {problem}: give the folder and tag of a checkpoint that has them, or a full "
                "checkpoint (partial=False), which fits every degree"
            )
        if name == "model" and _is_spread() != any(len(position) > 2 for position in positions.values()):
            raise SMPError(
                "smp.resume_from_checkpoint: expected a partial checkpoint of the same sharded_data_parallel_degree, "
                f"found one with{'out' if _is_spread() else ''} sharded data parallelism in {self._folder}: give a "
                "full checkpoint (partial=False), which fits every degree"
            )
        own_position = (ranks.tp_rank(), ranks.rdp_rank()) if _is_spread() else (ranks.tp_rank(),)
        return [
            _load(path, "cpu", mmap=True)
            for path, position in positions.items()
            if position[1:][: len(own_position)] == own_position
        ]


class _Full:
    """The full checkpoint *tag* below *root*."""

    def __init__(self, root: Path, tag: str) -> None:
        self._root, self._tag = root, tag

    def model(self) -> dict[str, Any]:
        state: dict[str, Any] = _load(self._root / self._tag, "cpu", mmap=True)
        return state

    def optimizer(self, with_state: bool) -> dict[str, Any] | None:
        """Return its whole state, None if the model was saved alone: a state_dict of torch.save, for fine-tuning."""
        path = self._root / f"optimizer_{self._tag}"
        if not exists(path):
            return None
        state: dict[str, Any] = _load(path, "cpu", mmap=True)
        return state if with_state else {name: state[name] for name in LOW_PRECISION if name in state}

    def user_content(self) -> Any:
        path = self._root / f"{USER_CONTENT}_{self._tag}"
        return _load(path, "cpu", weights_only=False) if exists(path) else None


def _is_spread() -> bool:
    """Return whether each replica holds a part of the model of its own (sharded data parallelism)."""
    return bool(api.state.cfg.sharded_data_parallel_degree > 1)


def _load(path: Path, map_location: Any, **options: Any) -> Any:
    try:
        return torch.load(path, map_location=map_location, **options)
    except FileNotFoundError:
        beside = [sibling.name for sibling in matching(path.parent, "*", named_elsewhere)[:10]]
        raise SMPError(
            f"expected a checkpoint's file {path}, found none (beside it: {', '.join(beside) or 'nothing'}): give the "
            "path and tag under which it was saved; a partial file has one number for each rank that saved it"
        ) from None


def _partial_name(f: Any, v3: bool) -> str:
    position = str(ranks.pp_rank())
    if ranks.tp_size() > 1 or v3:
        position += f"_{ranks.tp_rank()}"
    return f"{f}_{position}_{ranks.rdp_rank()}" if v3 else f"{f}_{position}"


def _note_partitions(path: Path) -> None:
    """Write the number of partitions as the comment at the end of *path*, a zip file of torch.save."""
    note = NOTE + str(ranks.pp_size()).encode()
    with path.open("r+b") as file:
        if file.seek(0, os.SEEK_END) < len(ZIP_END) + 2:
            return
        file.seek(-len(ZIP_END) - 2, os.SEEK_END)
        ending = file.read()
        if ending[:4] == ZIP_END[:4] and ending[-2:] == b"\0\0":  # The older format of torch.save is no zip file.
            file.seek(-2, os.SEEK_END)
            file.write(len(note).to_bytes(2, "little") + note)


def _check_partitions(f: Any, path: Path) -> None:
    """Check that *path*, this rank's part of *f*, was saved with the present number of partitions.

    Raises:
        SMPError: it is not, or there are parts of others and none of this one.
    """
    pattern = re.compile(re.escape(Path(f).name) + r"_(\d+)(_\d+){0,2}")
    names = [sibling.name for sibling in matching(Path(f).parent, "*", fail)]
    parts = sorted({int(match[1]) for name in names if (match := pattern.fullmatch(name))})
    if exists(path):
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 64))
            _, _, number = file.read().rpartition(NOTE)
        saved = int(number) if number.isdigit() else max(ranks.pp_size(), *(part + 1 for part in parts))
    else:
        saved = len(parts) or ranks.pp_size()
    if saved != ranks.pp_size() or (parts and not exists(path)):
        raise SMPError(
            f"smp.load: expected the parts of {ranks.pp_size()} partitions at {f}, found those of {saved} "
            f"(partitions {', '.join(map(str, parts))} here): load them with as many partitions as saved them. For "
            "another number use smp.save_checkpoint and smp.resume_from_checkpoint, or a full file (partial=False)"
        )


def _read_newest(root: Path) -> dict[str, str]:
    try:
        tags = json.loads((root / NEWEST).read_bytes())
    except (FileNotFoundError, ValueError):
        return {}
    return tags if isinstance(tags, dict) else {}


def _write_newest(root: Path, kind: str, tag: str) -> None:
    part = root / f"{NEWEST}.{ranks.rank()}.part"
    part.write_text(json.dumps({**_read_newest(root), kind: tag}) + "\n")
    part.replace(root / NEWEST)


def _replace_folder(making: Path, folder: Path) -> None:
    old = folder.with_name(folder.name + ".old")
    shutil.rmtree(old, ignore_errors=True)
    if exists(folder):
        folder.rename(old)
    making.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def _drop_old(root: Path, keep_count: int) -> None:
    folders = sorted(matching(root, "*_partial", fail), key=lambda folder: folder.stat().st_mtime_ns)
    for folder in folders[:-keep_count]:
        shutil.rmtree(folder, ignore_errors=True)
