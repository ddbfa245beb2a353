"""smp.nn.huggingface.gptneox."""

from toolkit.modelparallel.torch.translation import names as _names

globals().update(_names("gptneox"))
