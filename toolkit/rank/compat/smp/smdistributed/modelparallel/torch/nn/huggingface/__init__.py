"""smp.nn.huggingface: a module for each of Hugging Face's models that the old library replaces."""

from smdistributed.modelparallel.torch.nn.huggingface import bert as bert
from smdistributed.modelparallel.torch.nn.huggingface import gpt2 as gpt2
from smdistributed.modelparallel.torch.nn.huggingface import gptj as gptj
from smdistributed.modelparallel.torch.nn.huggingface import gptneo as gptneo
from smdistributed.modelparallel.torch.nn.huggingface import gptneox as gptneox
from smdistributed.modelparallel.torch.nn.huggingface import roberta as roberta
from smdistributed.modelparallel.torch.nn.huggingface import t5 as t5
from smdistributed.modelparallel.torch.nn.huggingface import vit as vit
