"""smp.nn.huggingface.gptneox."""

from toolkit.rank.modelparallel.torch.translation import names as _names

globals().update(_names("gptneox"))
