"""Conv1D of transformers, and blocks of its GPT-2, under tensor parallelism, against one process. Two ranks; prints one
JSON object."""

import json

import torch
import torch.nn as nn
from smdistributed.modelparallel.torch.nn.huggingface import gpt2
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.models.gpt2.modeling_gpt2 import GPT2Block
from transformers.pytorch_utils import Conv1D

import smdistributed.modelparallel.torch as smp


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.c_fc, self.c_proj, self.conv = Conv1D(20, 7), Conv1D(7, 20), nn.Conv1d(1, 1, 3, padding=1)

    def forward(self, x):
        x = self.c_proj(torch.nn.functional.gelu(self.c_fc(x)))
        return self.conv(x.flatten(0, 1).unsqueeze(1))


def make():
    torch.manual_seed(2)
    return Model()


def loss_of(output):
    return (output**2).mean()


smp.init({"partitions": 1, "tensor_parallel_degree": 2, "ddp": True, "microbatches": 2})
samples = torch.randn(8, 3, 7, generator=torch.Generator().manual_seed(5))
plain = make()
ordinary = torch.optim.SGD(plain.parameters(), 0.1)
module = make()
smp.set_tensor_parallelism(module)
model = smp.DistributedModel(module)
optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1))


@smp.step
def train(x):
    loss = loss_of(model(x))
    model.backward(loss)
    return loss


for _ in range(3):
    ordinary.zero_grad()
    loss_of(plain(samples)).backward()
    ordinary.step()
    optimizer.zero_grad()
    train(samples[4 * smp.dp_rank() : 4 * smp.dp_rank() + 4])
    optimizer.step()

held = {name: list(parameter.shape) for name, parameter in model.local_named_parameters()}
state = model.state_dict()
error = max((state[name] - value).abs().max().item() for name, value in plain.state_dict().items())
report = {"held": held, "error": error, "kind": type(module.c_fc).__name__}
smp.shutdown()


def language():
    """The error of the whole state after two steps of a GPT-2 whose blocks became layers of smp.nn."""
    smp.init({"partitions": 1, "tensor_parallel_degree": 2, "ddp": True})
    drops = dict.fromkeys(("attn_pdrop", "resid_pdrop", "embd_pdrop"), 0.0)
    config = GPT2Config(vocab_size=23, n_positions=8, n_embd=12, n_layer=2, n_head=4, **drops)
    torch.manual_seed(4)
    plain = GPT2LMHeadModel(config)
    ordinary = torch.optim.SGD(plain.parameters(), 0.1)
    module = GPT2LMHeadModel(config)
    smp.set_tensor_parallelism(module.transformer.h, True)
    smp.tp_register_with_module(
        GPT2Block, smp.nn.DistributedTransformerLayer, *gpt2.get_hf_gpt2_transformer_layer_hooks()
    )
    model = smp.DistributedModel(module)
    model.load_state_dict(gpt2.translate_hf_block_state_dict_to_smdistributed(plain.state_dict(), 8))
    assert type(module.transformer.h[0]) is smp.nn.DistributedTransformerLayer
    optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1))

    @smp.step
    def train(ids, mask):
        loss = model(input_ids=ids, attention_mask=mask, labels=ids).loss
        model.backward(loss)
        return loss

    ids = torch.randint(0, 23, (4, 8), generator=torch.Generator().manual_seed(6))
    mask = torch.ones_like(ids)
    mask[0, 6:] = 0
    for _ in range(2):
        ordinary.zero_grad()
        halves = [plain(input_ids=ids[half], attention_mask=mask[half], labels=ids[half]).loss for half in HALVES]
        (sum(halves) / 2).backward()
        ordinary.step()
        optimizer.zero_grad()
        train(ids[HALVES[smp.tp_rank()]], mask[HALVES[smp.tp_rank()]])
        optimizer.step()
    translated = gpt2.translate_layer_state_dict_to_hf_gpt2_block(model.state_dict(), 8)
    assert translated.keys() == plain.state_dict().keys()
    return max((translated[name] - value).abs().max().item() for name, value in plain.state_dict().items())


HALVES = (slice(0, 2), slice(2, 4))
print(json.dumps({**report, "blocks": language()}))
