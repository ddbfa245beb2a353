"""smp.nn.huggingface.gptneo."""

from toolkit.modelparallel.torch.translation import names as _names

globals().update(_names("gptneo"))
