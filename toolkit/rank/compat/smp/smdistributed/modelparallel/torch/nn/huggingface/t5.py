"""smp.nn.huggingface.t5."""

from toolkit.rank.modelparallel.torch.translation import names as _names

globals().update(_names("t5"))
