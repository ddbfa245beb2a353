"""smp.nn.huggingface.gptj."""

from toolkit.modelparallel.torch.translation import names as _names

globals().update(_names("gptj"))
