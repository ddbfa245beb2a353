"""smp.nn.huggingface: the states of Hugging Face's models, which this library's models share.

AWS's library replaces such a model by transformer layers of its own, whose parameters have other names and shapes, and
translates states between the two. Here a model keeps its modules, and a whole state has the names and shapes of the
model that was given: both directions return the state as it is.
"""

from collections.abc import Callable, Mapping
from typing import Any

from toolkit.rank.modelparallel.errors import SMPError

# Part of the names of smp.nn's layers, and of no name in a state of Hugging Face.
SMP_LAYERS = "seq_layers."
Translate = Callable[..., Mapping[str, Any]]


def from_hugging_face(state_dict: Mapping[str, Any], *_: Any, **__: Any) -> Mapping[str, Any]:
    """Return *state_dict*, of a Hugging Face model, for DistributedModel.load_state_dict: as it is."""
    return state_dict


def to_hugging_face(state_dict: Mapping[str, Any], *_: Any, **__: Any) -> Mapping[str, Any]:
    """Return *state_dict*, of DistributedModel.state_dict, for the Hugging Face model that was given: as it is.

    Raises:
        SMPError: it is the state of a model made of smp.nn's layers.
    """
    if layer_name := next((name for name in state_dict if SMP_LAYERS in name), None):
        raise SMPError(
            f"smp.nn.huggingface: expected the state of a Hugging Face model, whose names a DistributedModel keeps, "
            f"found {layer_name} of smp.nn's layers: their parameters have names of their own. Rename them in the "
            "script"
        )
    return state_dict


def names(*models: str) -> dict[str, Translate]:
    """Return the functions of the module of one of *models* (gpt2, ...), by AWS's names."""
    functions: dict[str, Translate] = {"translate_hf_state_dict_to_smdistributed": from_hugging_face}
    for model in models:
        functions[f"translate_hf_state_dict_to_smdistributed_{model}"] = from_hugging_face
        functions[f"translate_hf_{model}_state_dict_to_smdistributed"] = from_hugging_face
        functions[f"translate_state_dict_to_hf_{model}"] = to_hugging_face
    return functions
