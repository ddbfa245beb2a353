"""Causal language modelling with Hugging Face's Trainer: a small GPT-2 from a random start.

It stands for run_clm.py of the article "How to Speed Up Model Training and Cut Down Billing Time with Amazon SageMaker"
and takes that article's hyperparameters by their names; `today` says which of them transformers has renamed or dropped.
Nothing is downloaded: the text is that of Python's own manual (pydoc_data, part of every Python, PSF licence) or the
.txt files of channel `train`, and the tokenizer is trained on it.
"""

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from pydoc_data import topics

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    HfArgumentParser,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    default_data_collator,
    set_seed,
)
from transformers.trainer_callback import PrinterCallback, ProgressCallback
from transformers.utils import is_torch_xla_available


@dataclass
class Ours:
    """Beside Trainer's own arguments: those of run_clm.py, and the size of the model."""

    model_type: str = field(default="gpt2", metadata={"help": "gpt2 is the only one here"})
    tokenizer_name: str = field(default="", metadata={"help": "not loaded: a tokenizer is trained on the text"})
    dataset_name: str = field(default="", metadata={"help": "not loaded: the text is that of the channel or of Python"})
    dataset_config_name: str = field(default="", metadata={"help": "as dataset_name"})
    block_size: int = field(default=128, metadata={"help": "tokens in a row"})
    vocabulary: int = field(default=1024, metadata={"help": "tokens that there are"})
    characters: int = field(default=200_000, metadata={"help": "of the text, at most"})
    layers: int = field(default=2)
    width: int = field(default=128)
    heads: int = field(default=4)


def today(words: list[str], say) -> list[str]:
    """Return the arguments as transformers 5 takes them; *say* gets a line for each that it renamed or dropped."""
    pairs = dict(zip(words[::2], words[1::2], strict=True))
    if "--evaluation_strategy" in pairs:
        pairs["--eval_strategy"] = pairs.pop("--evaluation_strategy")
        say("evaluation_strategy is called eval_strategy since transformers 4.46")
    if "--overwrite_output_dir" in pairs:
        del pairs["--overwrite_output_dir"]
        say("overwrite_output_dir is gone since transformers 5: the folder is always overwritten")
    if pairs.get("--fp16", "").lower() == "true" and not torch.cuda.is_available():
        del pairs["--fp16"]
        say("fp16 needs a GPU: numbers are float32 here. On a CPU, TOOLKIT_AUTOCAST=auto tries bfloat16")
    if not torch.cuda.is_available() and not is_torch_xla_available():
        pairs["--use_cpu"] = "True"  # Else accelerate leaves each rank alone, as it looks for a GPU only.
    if is_torch_xla_available() and "--optim" not in pairs:
        pairs["--optim"] = "adamw_torch"  # transformers 5's own choice is the fused one, which torch refuses on XLA.
    for name in ("--dataset_name", "--tokenizer_name"):
        if pairs.get(name):
            say(f"{name[2:]}={pairs[name]} is not downloaded: text and tokenizer are made here")
    return [word for pair in pairs.items() for word in pair]


def text(characters: int) -> str:
    """Return the text of channel `train`, without one that of Python's manual, cut to *characters*."""
    folder = os.environ.get("SM_CHANNEL_TRAIN")
    if folder:
        whole = "\n".join(path.read_text(encoding="utf-8") for path in sorted(Path(folder).rglob("*.txt")))
    else:
        whole = "\n".join(topics.topics[name] for name in sorted(topics.topics))
    return whole[:characters]


def rows(content: str, vocabulary: int, block_size: int) -> list[dict]:
    """Return *content* as rows of *block_size* tokens, with a tokenizer trained on it; the rest is left out."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(content.splitlines(keepends=True), trainer)
    tokens = torch.tensor(tokenizer.encode(content).ids)
    whole = tokens[: len(tokens) // block_size * block_size].reshape(-1, block_size)
    return [{"input_ids": row, "labels": row} for row in whole]


class LogLine(TrainerCallback):
    """Prints what Trainer logs as numbers. transformers 5 itself prints `'loss': '3.27'`, and the article's regexes
    find no number between quotes."""

    def on_log(self, args, state, control, logs=None, **kwargs):  # noqa: ARG002 - transformers' signature
        if state.is_world_process_zero:
            print({name: value for name, value in logs.items() if name != "total_flos"}, flush=True)


def main() -> None:
    first = os.environ.get("RANK", "0") == "0"
    words = today(sys.argv[1:], lambda line: first and print(f"gpt2_text: {line}", flush=True))
    ours, arguments = HfArgumentParser((Ours, TrainingArguments)).parse_args_into_dataclasses(words)
    arguments.report_to, arguments.disable_tqdm = [], True
    set_seed(arguments.seed)
    data = rows(text(ours.characters), ours.vocabulary, ours.block_size)
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=ours.vocabulary,
            n_positions=ours.block_size,
            n_embd=ours.width,
            n_layer=ours.layers,
            n_head=ours.heads,
            bos_token_id=0,
            eos_token_id=0,
        )
    )
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=data,
        data_collator=default_data_collator,
        callbacks=[LogLine()],
    )
    trainer.remove_callback(PrinterCallback)
    trainer.remove_callback(ProgressCallback)
    if arguments.do_train:
        trainer.train()
        trainer.save_model()


def _mp_fn(index):  # noqa: ARG001 - torch_xla's signature
    """What distribution pytorchxla calls in each rank."""
    main()


if __name__ == "__main__":
    main()
