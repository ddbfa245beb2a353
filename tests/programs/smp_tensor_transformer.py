"""smp.nn's transformer against a plain one, which it replaces; phases of smp_tensor.py."""

import torch
import torch.nn as nn
import torch.nn.functional as F

import smdistributed.modelparallel.torch as smp

HEADS, HEAD, WIDTH, INNER, VOCABULARY, LENGTH = 4, 5, 18, 27, 23, 6


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.pre_layernorm, self.layernorm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.key, self.value = (nn.Linear(WIDTH, HEADS * HEAD) for _ in range(3))
        self.dense = nn.Linear(HEADS * HEAD, WIDTH)

    def forward(self, hidden, source, hides):
        x = self.pre_layernorm(hidden)
        source = x if source is None else source
        query, key, value = (
            layer(y).unflatten(-1, (HEADS, HEAD)).transpose(1, 2)
            for layer, y in ((self.query, x), (self.key, source), (self.value, source))
        )
        scores = (query @ key.transpose(-1, -2) / HEAD**0.5).masked_fill(hides, float("-inf"))
        return self.layernorm(hidden + self.dense((scores.softmax(-1) @ value).transpose(1, 2).flatten(2)))


class Output(nn.Module):
    def __init__(self):
        super().__init__()
        self.pre_layernorm, self.layernorm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.dense1, self.dense2 = nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)

    def forward(self, x):
        return self.layernorm(x + self.dense2(F.gelu(self.dense1(self.pre_layernorm(x)), approximate="tanh")))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.cross_attention, self.output = Attention(), Attention(), Output()

    def forward(self, x, cross, hides, hides_cross):
        return self.output(self.cross_attention(self.attention(x, None, hides), cross, hides_cross))


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        self.seq_layers = nn.Sequential(Layer(), Layer())


@smp.tp_register(
    smp.nn.DistributedTransformerLMHead,
    init_hook=lambda fused: (
        (),
        {
            "num_layers": 2,
            "num_attention_heads": HEADS,
            "attention_head_size": HEAD,
            "hidden_size": WIDTH,
            "intermediate_size": INNER,
            "vocab_size": VOCABULARY,
            "num_positions": LENGTH,
            "num_token_types": 2,
            "attention_dropout_prob": 0.0,
            "hidden_dropout_prob": 0.0,
            "activation": "gelu_new",
            "causal_mask_size": LENGTH,
            "add_cross_attention": True,
            "pre_layernorm": True,
            "fused_softmax": fused,
        },
    ),
    forward_hook=lambda *inputs: ((inputs,), {}),
)
class Language(nn.Module):
    """A decoder whose every layer looks at other states, too."""

    def __init__(self, fused):
        super().__init__()
        self.word_embedding, self.position_embedding = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.token_type_embedding = nn.Embedding(2, WIDTH)
        self.layernorm, self.transformer = nn.LayerNorm(WIDTH), Layers()
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.lm_head.weight = self.word_embedding.weight

    def forward(self, ids, mask, types, positions, cross, cross_mask, labels):
        x = self.word_embedding(ids) + self.position_embedding(positions) + self.token_type_embedding(types)
        hides = (mask == 0)[:, None, None] | torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
        for layer in self.transformer.seq_layers:
            x = layer(x, cross, hides, (cross_mask == 0)[:, None, None])
        logits = self.lm_head(self.layernorm(x))
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


class Net(nn.Module):
    """The states to look at come from a layer of another kind, so their gradients count."""

    def __init__(self, fused=True):
        super().__init__()
        self.source, self.language = nn.Linear(3, WIDTH), Language(fused)

    def forward(self, ids, source):
        mask = (torch.arange(LENGTH) < 5).expand(ids.shape).int()
        positions = torch.arange(LENGTH).expand(ids.shape)
        cross_mask = torch.tensor([1, 1, 0, 1]).expand(len(ids), 4)
        cross = torch.tanh(self.source(source))
        return self.language(ids, mask, ids % 2, positions, cross, cross_mask, ids)


def samples(place):
    torch.manual_seed(40 + place)
    return torch.randint(0, VOCABULARY, (8, LENGTH)), torch.randn(8, 4, 3)


@smp.step
def train_step(model, ids, source):
    loss = model(ids, source)
    model.backward(loss)
    return loss


def trained(fused, compare, note, holds):
    """The worst |dg| / |g| of a parameter after one step, in double precision: a key's bias has no gradient but noise."""
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(5)
    plain = Net(fused)
    torch.manual_seed(5)
    precise = {"attention_in_fp32": True, "fp32_residual_addition": True}  # Without effect in double precision.
    with smp.tensor_parallelism(fused_bias_gelu=True, query_key_layer_scaling=True, **precise):
        plain_net = Net(fused)
    model = smp.DistributedModel(plain_net)
    places = smp.rdp_size() if smp.state.cfg.prescaled_batch else smp.dp_size()
    place = smp.rdp_rank() if smp.state.cfg.prescaled_batch else smp.dp_rank()
    losses = [plain(*samples(place)) for place in range(places)]
    (sum(losses) / places).backward()
    loss = train_step(model, *samples(place)).reduce_mean().item()
    note("transformer's loss", abs(loss / losses[place].item() - 1) / 1e-6)
    kinds = {type(module).__name__ for module in model.modules()}
    holds("a registered transformer is replaced", "DistributedTransformerLMHead" in kinds)
    torch.set_default_dtype(torch.float32)
    worst = compare(model, plain, "transformer's gradients", 1e-9)
    return worst, sum(
        parameter.numel() for parameter in model.local_parameters() if model.is_distributed_parameter(parameter)
    )


def dropping(holds):
    """Ranks of equal samples and unequal seeds drop the same: their losses are equal, and others in the next step."""
    layer = {"num_attention_heads": 2, "attention_head_size": 4, "hidden_size": 8, "intermediate_size": 8}
    torch.manual_seed(6)
    model = smp.DistributedModel(smp.nn.DistributedTransformer(2, attention_dropout_prob=0.0, **layer))

    @smp.step
    def run(x):
        return model((x, None))[0][..., 0].mul(torch.arange(5.0)).sum()

    torch.manual_seed(smp.tp_rank())
    means = [run(torch.ones(4, 5, 8)).reduce_mean().item() for _ in range(2)]
    holds("two steps drop different elements", abs(means[0] - means[1]) > 1e-3)
    all_means = set(map(tuple, smp.allgather(means, smp.TP_GROUP)))
    holds("tensor parallel ranks drop the same elements", len(all_means) == 1)
