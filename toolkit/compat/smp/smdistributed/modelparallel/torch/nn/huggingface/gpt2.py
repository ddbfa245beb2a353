"""smp.nn.huggingface.gpt2."""

from toolkit.modelparallel.torch.translation import names as _names

globals().update(_names("gpt2"))
