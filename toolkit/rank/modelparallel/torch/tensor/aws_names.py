"""The names that AWS's library gives the parts of Hugging Face's models.

AWS's library replaces a marked GPT-2, GPT-J or GPT-NeoX by smp.nn.DistributedTransformerLMHead, and scripts reach its
parts by that class's names: `model.get_module().transformer.seq_layers`, and `attention` and `output` of a layer. Here
the modules stay, so they get these names beside their own. A name that is no child of its module is in no state.
"""

from collections.abc import Iterable

from torch import nn

from toolkit.rank.frameworks.torch.modules import get_own_children

# By the name of a class of transformers: AWS's name and transformers'.
BLOCK = {"attention": "attn", "output": "mlp"}
NAMES: dict[str, dict[str, str]] = {
    "GPT2Block": BLOCK,
    "GPT2Model": {"seq_layers": "h"},
    "GPTJBlock": BLOCK,
    "GPTJModel": {"seq_layers": "h"},
    "GPTNeoXForCausalLM": {"transformer": "gpt_neox"},
    "GPTNeoXLayer": {"output": "mlp"},
    "GPTNeoXModel": {"seq_layers": "layers"},
}


def add_aws_names(modules: Iterable[nn.Module]) -> None:
    """Give each of *modules*, which are marked, AWS's names of its parts."""
    for module in modules:
        for name, child_name in NAMES.get(type(module).__name__, {}).items():
            children = get_own_children(module)
            if child_name in children and not hasattr(module, name):
                module.__dict__[name] = children[child_name]
