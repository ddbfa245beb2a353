"""Small data in the form that the examples read: random, but the same in every run, and with something to learn."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

VOCABULARY, SAMPLES = 96, 96


def _numpy() -> Any:
    import numpy

    return numpy


def gpt(folder: Path, *, length: int = 16) -> None:
    """One JSON line per sample, input_ids and attention_mask; each token mostly follows from the one before."""
    random = _numpy().random.default_rng(0)
    for channel, files in (("train", 2), ("test", 1)):
        (folder / channel).mkdir(parents=True)
        for number in range(files):
            lines = []
            for _ in range(SAMPLES):
                tokens = [int(random.integers(2, VOCABULARY))]
                while len(tokens) < length:
                    tokens.append((tokens[-1] * 5 + 7 + int(random.integers(2))) % (VOCABULARY - 2) + 2)
                lines.append(json.dumps({"input_ids": tokens, "attention_mask": [1] * length}))
            (folder / channel / f"{number}.json").write_text("\n".join(lines) + "\n")


def gpt_with_model(folder: Path, *, kind: str) -> None:
    """The data of `gpt`, and a channel `model` with a small pretrained model of Hugging Face's, for --model_name."""
    import torch
    import transformers

    gpt(folder)
    torch.manual_seed(0)
    sizes = {"vocab_size": VOCABULARY, "n_positions": 16, "n_embd": 32, "n_layer": 4, "n_head": 4}
    quiet = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "use_cache": False}
    config = transformers.AutoConfig.for_model(kind, **sizes, **quiet, **({"rotary_dim": 8} if kind == "gptj" else {}))
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder / "model")


def bert(folder: Path, *, length: int = 128, predictions: int = 20) -> None:
    """HDF5 shards of BERT's pretraining: the six keys of NVIDIA's recipe."""
    import h5py  # type: ignore[import-not-found]

    numpy = _numpy()
    random = numpy.random.default_rng(0)
    (folder / "train").mkdir(parents=True)
    (folder / "model").mkdir()
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4}
    lengths = {"intermediate_size": 64, "max_position_embeddings": length, "type_vocab_size": 2}
    rest = {
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "initializer_range": 0.02,
    }
    (folder / "model/bert_config.json").write_text(json.dumps({**sizes, **lengths, **rest}))
    for number in range(4):
        tokens = random.integers(5, VOCABULARY, (SAMPLES, length))
        positions = numpy.sort(
            random.permuted(numpy.tile(numpy.arange(1, length), (SAMPLES, 1)), axis=1)[:, :predictions]
        )
        labels = numpy.take_along_axis(tokens, positions, 1)
        numpy.put_along_axis(tokens, positions, 4, 1)
        with h5py.File(folder / f"train/training_{number}.hdf5", "w") as file:
            for name, values in {
                "input_ids": tokens,
                "input_mask": numpy.ones_like(tokens),
                "segment_ids": numpy.tile(numpy.arange(length) >= length // 2, (SAMPLES, 1)).astype(int),
                "masked_lm_positions": positions,
                "masked_lm_ids": labels,
                "next_sentence_labels": random.integers(0, 2, SAMPLES),
            }.items():
                file.create_dataset(name, data=values.astype("i4"))


def mnist(folder: Path, *, images: int = 1024) -> None:
    """Squares of ten kinds, 28 x 28, in the form of Keras's mnist.npz."""
    numpy = _numpy()
    random = numpy.random.default_rng(0)
    (folder / "train").mkdir(parents=True)
    arrays = {}
    for part, count in (("train", images), ("test", images // 2)):
        labels = random.integers(0, 10, count)
        pictures = random.integers(0, 60, (count, 28, 28))
        for picture, label in zip(pictures, labels, strict=True):
            row, column = divmod(int(label), 4)
            picture[row * 8 + 2 : row * 8 + 8, column * 7 : column * 7 + 6] += 180
        arrays[f"x_{part}"], arrays[f"y_{part}"] = pictures.astype("u1"), labels.astype("u1")
    numpy.savez(folder / "train/mnist.npz", **arrays)


KINDS: dict[str, Callable[[Path], None]] = {
    "bert": bert,
    "gpt": gpt,
    "gpt2 model": lambda folder: gpt_with_model(folder, kind="gpt2"),
    "gptj model": lambda folder: gpt_with_model(folder, kind="gptj"),
    "mnist": mnist,
}
