"""docs/modelparallel.md's table of names holds: what it says works is there, what it says is refused is not."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from toolkit.parallelism.parameters import Parameters
from toolkit.train.launchers.compat import FOLDER
from toolkit.train.launchers.environment import HOOK

pytestmark = pytest.mark.torch
PAGE = Path(__file__).parents[4] / "docs/modelparallel.md"
# What the scripts of AWS's public examples for release 1 use (aws/amazon-sagemaker-examples, all revisions of
# training/distributed_training/pytorch/model_parallel and of its archive; read on 29 November 2026): each name with how
# many arguments the scripts give it by place at most, and which by name. None: it is no function, or only asked for.
TENSOR_PARALLEL = (
    "attention_in_fp32 fused_bias_gelu fused_softmax query_key_layer_scaling distribute_embedding flash_attention "
    "fp32_residual_addition fused_dropout use_alibi zero_init"
)
OFFICIAL: dict[str, tuple[int, str] | None] = {
    **dict.fromkeys(
        ("WORLD", "DP_GROUP", "MP_GROUP", "PP_GROUP", "TP_GROUP", "state.cfg", "amp", "nn", "nn.huggingface")
    ),
    **{f"RankType.{kind}_RANK": None for kind in ("WORLD", "DP", "MP", "PP", "RDP", "TP")},
    **{f"{kind}_{what}": (0, "") for kind in ("dp", "mp", "pp", "rdp", "tp") for what in ("rank", "size")},
    **{f"get_{kind}_process_group": (0, "") for kind in ("dp", "mp", "world")},
    **dict.fromkeys(("rank", "size", "local_rank", "get_tp_group", "is_initialized", "barrier"), (0, "")),
    "init": (1, ""),
    "step": (1, "non_split_inputs input_split_axes detach_outputs"),
    "send": (3, ""),
    "recv_from": (2, ""),
    "broadcast": (2, ""),
    "allgather": (2, ""),
    "hvd_average_grads": (0, ""),
    "partition": (1, ""),
    "set_partition": (2, ""),
    "set_activation_checkpointing": (1, "pack_args_as_tuple strategy"),
    "set_tensor_parallelism": (2, ""),
    "tensor_parallelism": (0, f"enabled {TENSOR_PARALLEL}"),
    "model_creation": (0, f"tensor_parallelism dtype {TENSOR_PARALLEL}"),
    "delay_param_initialization": (0, "enabled"),
    "tp_register_with_module": (5, ""),
    "save": (3, "partial v3"),
    "load": (1, "partial back_compat"),
    "save_checkpoint": (1, "model num_kept_partial_checkpoints optimizer partial path tag user_content"),
    "resume_from_checkpoint": (1, "load_optimizer partial path tag"),
    "DistributedModel": (1, "backward_passes_per_step gradient_as_bucket_view trace_device"),
    "DistributedModel.backward": (2, ""),
    "DistributedModel.get_module": (1, ""),
    "DistributedModel.load_state_dict": (2, "strict same_partition_load"),
    "DistributedModel.local_state_dict": (1, ""),
    "DistributedModel.register_post_partition_hook": (2, ""),
    "DistributedModel.register_post_step_hook": (2, ""),
    "DistributedModel.virtual_named_parameters": (1, ""),
    "DistributedOptimizer": (1, "dynamic_loss_args dynamic_loss_scale static_loss_scale"),
    "DistributedOptimizer.clip_master_grads": (2, ""),
    "DistributedOptimizer.load_state_dict": (2, ""),
    "DistributedOptimizer.local_state_dict": (1, ""),
    "DistributedOptimizer.zero_grad": (1, "set_to_none"),
    "DistributedOptimizer._param_id_to_index": (1, ""),
    **{
        f"DistributedOptimizer.{name}": None
        for name in (
            "overflow",
            "_global_grad_norm",
            "fp32_partitioned_groups_flat",
            "fp16_groups",
            "ds_param_shard_group",
        )
    },
    **{f"StepOutput.{name}": (1, "") for name in ("reduce_mean", "reduce_sum", "concat", "stack", "merge", "__iter__")},
    "amp.GradScaler": (0, ""),
    "nn.FusedLayerNorm": (1, "eps"),
    "nn.DistributedTransformer": (0, "num_layers scale_attention_scores pre_layernorm post_layernorm"),
    "nn.DistributedTransformerLayer": (0, "num_attention_heads"),
    "nn.huggingface.gpt2.translate_hf_state_dict_to_smdistributed": (2, ""),
    "nn.huggingface.gpt2.translate_hf_state_dict_to_smdistributed_gpt2": (2, ""),
    "nn.huggingface.gpt2.translate_state_dict_to_hf_gpt2": (2, "max_seq_len"),
    "nn.huggingface.gpt2.get_hf_gpt2_transformer_layer_hooks": (0, ""),
    "nn.huggingface.gpt2.translate_hf_block_state_dict_to_smdistributed": (2, ""),
    "nn.huggingface.gpt2.translate_layer_state_dict_to_hf_gpt2_block": (2, ""),
    "nn.huggingface.gptj.translate_hf_gptj_state_dict_to_smdistributed": (2, "max_seq_len"),
    "nn.huggingface.gptj.translate_hf_state_dict_to_smdistributed_gptj": (2, ""),
    "nn.huggingface.gptj.translate_state_dict_to_hf_gptj": (2, ""),
    "nn.huggingface.gptneo.translate_hf_gptneo_state_dict_to_smdistributed": (2, ""),
    "nn.huggingface.gptneo.translate_state_dict_to_hf_gptneo": (2, ""),
    "optimizers.FusedLAMB": (1, "lr"),
    "optimizers.FusedNovoGrad": (
        2,
        "betas bias_correction eps grad_averaging init_zero reg_inside_moment",
    ),
    "state_mod.state.param_index_to_name_tp_group": None,
    "state_mod.state.param_name_to_index_tp_group": None,
    "utils.get_distribution_axis": (1, ""),
    "utils.rmsg": (1, ""),
}
# Modules that the scripts import from, beside those that come with smp.
MODULES = (
    *(
        f"torch.{name}"
        for name in ("nn", "optimizers", "state_mod", "utils", "amp", "patches.checkpoint", "exceptions")
    ),
    *(f"torch.nn.huggingface.{name}" for name in ("gpt2", "gptj", "gptneo", "gptneox", "bert", "roberta", "t5", "vit")),
    "test.torch.utils",
    "backend.exceptions",
)
# Not there, since no release can have had it: smdistributed.modelparallel.torch.nn.huggingface.j, in one revision.

ASK = """
import importlib, inspect, json, sys
import smdistributed.modelparallel.torch as smp
asked = json.load(sys.stdin)
found = {}
official = found["official"] = {}
for module in asked["modules"]:
    try:
        importlib.import_module("smdistributed.modelparallel." + module)
    except ImportError as error:
        official[module] = str(error)
for name, call in asked["official"].items():
    there = smp
    try:
        for part in name.split("."):
            there = type(there) if type(there).__name__ in ("State", "LibraryState") else there
            there = getattr(there, part)
        if call is not None:
            given = call[0] * [None]
            inspect.signature(there).bind_partial(*given)
            inspect.signature(there).bind_partial(**dict.fromkeys(call[1].split()))
    except Exception as error:
        official[name] = f"{type(error).__name__}: {error}"
for name in asked["told"]:
    there = smp
    try:
        for part in name.split("."):
            there = getattr(there, part)
        if name == "DistributedModel.join":
            there(None)
        found[name] = ""
    except Exception as error:
        found[name] = f"{type(error).__name__}: {error}"
found["public"] = [name for name in dir(smp) if not name.startswith("_")]
found["public"] += [f"nn.{name}" for name in dir(smp.nn) if name.startswith(("Dist", "Fused"))]
found["public"] = [name for name in found["public"] if name not in ("torch", "smdistributed")]
print(json.dumps(found))
"""


def test_every_name_is_in_the_table_and_as_it_says_and_official_scripts_find_theirs() -> None:
    section = PAGE.read_text().partition("## Names for PyTorch")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \| (works|differs|refused)\b(.*) \|$", section, re.MULTILINE)
    told = {name: how for names, how, _ in rows for name in re.findall(r"`([\w.]+)`", names)}
    environ = {"PYTHONPATH": str(HOOK), "TOOLKIT_COMPAT_PATH": str(FOLDER / "smp"), "PATH": os.environ["PATH"]}

    asked = subprocess.run(
        [sys.executable, "-c", ASK],
        input=json.dumps({"told": list(told), "official": OFFICIAL, "modules": MODULES}),
        env=environ,
        capture_output=True,
        text=True,
    )

    assert asked.returncode == 0, asked.stderr
    found = json.loads(asked.stdout)
    assert found.pop("official") == {}
    public = found.pop("public")
    assert [name for name in public if not any(each.split(".")[0] == name or each == name for each in told)] == []
    assert len(rows) == section.count("\n| `")
    assert {name: why for name, why in found.items() if why and told[name] != "refused"} == {}
    assert [name for name, why in found.items() if not why and told[name] == "refused"] == []


def test_every_parameter_is_in_the_table_of_parameters() -> None:
    section = PAGE.read_text().partition("## Parameters")[2].partition("\n## ")[0]
    named = set(re.findall(r"\w+", " ".join(re.findall(r"^\| (.*?) \|", section, re.MULTILINE))))

    missing = [field.name for field in msgspec.structs.fields(Parameters) if field.name not in named]

    assert [name for name in missing if not name.startswith("sdp_")] == []
