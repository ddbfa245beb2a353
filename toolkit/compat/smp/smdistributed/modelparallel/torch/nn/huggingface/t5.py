"""smp.nn.huggingface.t5."""

from toolkit.modelparallel.torch.translation import names as _names

globals().update(_names("t5"))
