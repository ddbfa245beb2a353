"""The calls of AWS's GPT scripts in their order, with a small GPT-2: PATH of checkpoints, steps, "resume" or "begin".

Prints the loss of each step, the mean over all replicas, as JSON.
"""

import json
import sys

import smdistributed.modelparallel.torch as smp
import torch
from smdistributed.modelparallel.torch.nn import FusedLayerNorm
from transformers import AutoModelForCausalLM, GPT2Config, set_seed


@smp.step
def train_step(model, input_ids, attention_mask, args):
    loss = model(input_ids=input_ids, attention_mask=attention_mask, labels=input_ids)["loss"]
    model.backward(loss)
    return loss


path, steps, how = sys.argv[1], int(sys.argv[2]), sys.argv[3]
smp.init({"ddp": True, "pipeline_parallel_degree": 1, "microbatches": 1, "skip_tracing": True, "fast_mode": False})
set_seed(12345)
with smp.model_creation(
    tensor_parallelism=True,
    zero_init=False,
    dtype=torch.get_default_dtype(),
    distribute_embedding=False,
    use_alibi=False,
    attention_in_fp32=False,
    fp32_residual_addition=False,
    query_key_layer_scaling=False,
    fused_softmax=True,
    fused_dropout=False,
    fused_bias_gelu=True,
    flash_attention=True,
):
    quiet = {"resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0, "use_cache": False}
    model = AutoModelForCausalLM.from_config(
        GPT2Config(vocab_size=64, n_positions=8, n_embd=16, n_layer=2, n_head=2, **quiet)
    )
set_seed(12345 + smp.tp_rank())
model = smp.DistributedModel(model, trace_device="gpu", backward_passes_per_step=1)
m = model.get_module()
layers = m.transformer.seq_layers
plain, norms = {"params": []}, {"params": [], "weight_decay": 0.0}
names_read = set()
for module in m.modules():
    for parameter in module._parameters.values():
        if parameter is not None and id(parameter) not in names_read:
            names_read.add(id(parameter))
            (norms if isinstance(module, FusedLayerNorm) else plain)["params"].append(parameter)
optimizer = torch.optim.Adam((plain, norms), betas=(0.9, 0.95), lr=0.01, weight_decay=0.01)
smp.set_activation_checkpointing(layers, strategy="group_2")
optimizer = smp.DistributedOptimizer(
    optimizer,
    static_loss_scale=None,
    dynamic_loss_scale=True,
    dynamic_loss_args={"scale_window": 1000, "min_scale": 1, "delayed_shift": 2},
)
done = 0
if how == "resume":
    smp.resume_from_checkpoint(path, tag="fullmodel.pt", partial=False)
    done = smp.resume_from_checkpoint(path, tag=None, partial=True)["total_steps"]
losses = []
for step in range(done, steps):
    samples = torch.randint(64, (4, 8), generator=torch.Generator().manual_seed(step))[smp.dp_rank() :: smp.dp_size()]
    optimizer.zero_grad(set_to_none=True)
    loss = train_step(model, samples, torch.ones_like(samples), None).reduce_mean().detach()
    optimizer.step()
    torch.distributed.all_reduce(loss, group=smp.get_dp_process_group())
    losses.append(loss.item() / smp.dp_size())
smp.save_checkpoint(
    path,
    tag=f"total_steps{steps}",
    partial=True,
    model=model,
    optimizer=optimizer,
    user_content={"total_steps": steps},
    num_kept_partial_checkpoints=5,
)
smp.save_checkpoint(path, tag="fullmodel.pt", partial=False, model=model)
smp.barrier()
print(json.dumps(losses))
