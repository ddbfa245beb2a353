"""Blocks of Hugging Face's GPT-2 as smp.nn.DistributedTransformerLayer: hooks for smp.tp_register, and states.

    smp.tp_register_with_module(GPT2Block, smp.nn.DistributedTransformerLayer, *hooks())

A block's attention has one matrix for query, key and value, and its layers (Conv1D) are transposed.
"""

import functools
import inspect
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from toolkit.rank.modelparallel.errors import SMPError

# Layers of a block and of a DistributedTransformerLayer that hold the same; transposed, but for the norms.
NORMS = {"ln_1": "attention.pre_layernorm", "ln_2": "output.pre_layernorm"}
LAYERS = {"attn.c_proj": "attention.dense", "mlp.c_fc": "output.dense1", "mlp.c_proj": "output.dense2"}
JOINT, PARTS = "attn.c_attn", ("attention.query", "attention.key", "attention.value")
BLOCK = re.compile(r"(?P<block>.*\bh\.\d+\.)(?P<layer>.+)\.(?P<kind>weight|bias|masked_bias)")
MASKS = ("attn.bias", "attn.masked_bias")  # Buffers of old releases of transformers.


def hooks() -> tuple[Any, Any, Any]:
    """Return the init, forward and return hook of GPT2Block."""
    return init_hook, forward_hook, return_hook


def init_hook(config: Any, *_: Any, **__: Any) -> tuple[tuple[()], dict[str, Any]]:
    """Translate the arguments of GPT2Block.

    Raises:
        SMPError: a block that computes what a DistributedTransformerLayer does not.
    """
    for name in ("add_cross_attention", "scale_attn_by_inverse_layer_idx"):
        if getattr(config, name, False):
            raise SMPError(
                f"smp.nn.huggingface.gpt2: expected {name}=False of a block that smp.nn's layer replaces, found True: "
                "mark its linear layers alone (smp.set_tensor_parallelism without smp.tp_register_with_module)"
            )
    return (), {
        "num_attention_heads": config.n_head,
        "attention_head_size": config.n_embd // config.n_head,
        "hidden_size": config.n_embd,
        "intermediate_size": config.n_inner or 4 * config.n_embd,
        "attention_dropout_prob": config.attn_pdrop,
        "hidden_dropout_prob": config.resid_pdrop,
        "activation": config.activation_function,
        "layernorm_epsilon": config.layer_norm_epsilon,
        "initializer_range": config.initializer_range,
        "use_normal_initialization": True,
        "causal_mask_size": config.n_positions,
        "pre_layernorm": True,
        "post_layernorm": False,
        "scale_attention_scores": getattr(config, "scale_attn_weights", True),
    }


def forward_hook(*args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Translate the arguments of GPT2Block.forward, whose order is another one in each few releases of transformers;
    the layer keeps no past.

    A rank whose samples have no padding may get no mask. It gives one all the same: tensor parallel ranks exchange
    them, and all must have one.
    """
    arguments = _forward_signature().bind(None, *args, **kwargs).arguments
    hidden_states, attention_mask = arguments["hidden_states"], arguments.get("attention_mask")
    if attention_mask is None:
        samples, length = hidden_states.shape[:2]
        attention_mask = hidden_states.new_zeros(samples, 1, length, length)
    elif attention_mask.dtype == torch.bool:  # True: is seen.
        least = torch.finfo(hidden_states.dtype).min
        attention_mask = torch.zeros_like(attention_mask, dtype=hidden_states.dtype).masked_fill(~attention_mask, least)
    return ((hidden_states, attention_mask),), {}


def return_hook(output: Any) -> Any:
    """Translate what the layer returns: GPT2Block returns the hidden states, before transformers 5 in a tuple."""
    return output[0] if _forward_signature().return_annotation is Tensor else (output[0],)


@functools.cache
def _forward_signature() -> inspect.Signature:
    from transformers.models.gpt2.modeling_gpt2 import GPT2Block

    return inspect.signature(GPT2Block.forward)


def from_hugging_face(state_dict: Mapping[str, Any], *_: Any, **__: Any) -> dict[str, Any]:
    """Return *state_dict*, of a Hugging Face GPT-2, with its blocks' parameters as those of the layers."""
    layer_state: dict[str, Any] = {}
    for name, value in state_dict.items():
        match = BLOCK.fullmatch(name)
        if match is None:
            layer_state[name] = value
            continue
        block, layer, kind = match["block"], match["layer"], match["kind"]
        if f"{layer}.{kind}" in MASKS:
            continue
        if layer == JOINT:
            joint = value.t() if kind == "weight" else value
            layer_state |= {
                f"{block}{part}.{kind}": part_value for part, part_value in zip(PARTS, joint.chunk(3), strict=True)
            }
        elif layer in LAYERS:
            layer_state[f"{block}{LAYERS[layer]}.{kind}"] = value.t() if kind == "weight" else value
        else:
            layer_state[f"{block}{NORMS.get(layer, layer)}.{kind}"] = value
    return layer_state


def to_hugging_face(state_dict: Mapping[str, Any], *_: Any, **__: Any) -> dict[str, Any]:
    """Return *state_dict*, of a model whose blocks are layers, with the parameters of Hugging Face's blocks."""
    norms, layers = ({new: old for old, new in names.items()} for names in (NORMS, LAYERS))
    block_state: dict[str, Any] = {}
    for name, value in state_dict.items():
        match = BLOCK.fullmatch(name)
        if match is None:
            block_state[name] = value
            continue
        block, layer, kind = match["block"], match["layer"], match["kind"]
        if layer == PARTS[0]:
            joint = torch.cat([state_dict[f"{block}{part}.{kind}"] for part in PARTS])
            block_state[f"{block}{JOINT}.{kind}"] = joint.t().contiguous() if kind == "weight" else joint
        elif layer in layers:
            block_state[f"{block}{layers[layer]}.{kind}"] = value.t().contiguous() if kind == "weight" else value
        elif layer not in PARTS:
            block_state[f"{block}{norms.get(layer, layer)}.{kind}"] = value
    return block_state
