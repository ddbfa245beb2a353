"""smp.nn.huggingface.bert."""

from toolkit.rank.modelparallel.torch.translation import names as _names

globals().update(_names("bert"))
