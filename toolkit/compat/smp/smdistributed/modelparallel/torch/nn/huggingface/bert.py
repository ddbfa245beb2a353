"""smp.nn.huggingface.bert."""

from toolkit.modelparallel.torch.translation import names as _names

globals().update(_names("bert"))
