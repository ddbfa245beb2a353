"""smp.nn's transformer layers: attention divided by heads, the feed-forward part by its inner features.

Each half of a layer takes this rank's samples, works on those of all tensor parallel ranks with its own heads or
features, and returns this rank's samples. Norms, dropout and residuals work on this rank's samples alone.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from toolkit.errors import did_you_mean
from toolkit.rank.modelparallel.errors import SMPError
from toolkit.rank.modelparallel.torch.tensor import exchanges
from toolkit.rank.modelparallel.torch.tensor.modules import DistributedModule, distribute_in_place
from toolkit.rank.modelparallel.torch.tensor.sharding import divide, get_group, slice_local

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": functional.gelu,
    "gelu_new": lambda x: functional.gelu(x, approximate="tanh"),
    "relu": functional.relu,
}


class _Inner(DistributedModule, nn.Linear):
    """The linear layer into a divided part: all features in, this rank's out."""

    def distribute(self) -> None:
        """Keep this rank's part."""
        divide(self.weight, 0)
        divide(self.bias, 0)


class _Outer(DistributedModule, nn.Linear):
    """The linear layer out of a divided part: this rank's features in, all out, of this rank's samples."""

    def distribute(self) -> None:
        """Keep this rank's part; the bias is on all ranks."""
        divide(self.weight, 1)

    def forward(self, input: Tensor) -> Tensor:
        """Return the sum over the ranks, of this rank's samples."""
        return exchanges.sum_out(functional.linear(input, self.weight)) + self.bias


def distribute_layer(layer: nn.Linear | nn.Embedding, kind: type[DistributedModule], deviation: float | None) -> Any:
    """Return *layer* as the distributed *kind*; its values are normal with *deviation*, None: as torch has them."""
    if deviation is not None:
        nn.init.normal_(layer.weight, std=deviation)
        if isinstance(layer, nn.Linear):
            nn.init.zeros_(layer.bias)
    distribute_in_place(layer, kind)
    return layer


class _Half(nn.Module):
    """One half of a transformer layer: norms, dropout and residual (*precise*: added in fp32) around `work`."""

    def __init__(
        self,
        hidden_size: int,
        dropout: float,
        epsilon: float,
        pre_layernorm: bool,
        post_layernorm: bool,
        precise: bool = False,
    ) -> None:
        super().__init__()
        self._is_precise = precise
        self.pre_layernorm = nn.LayerNorm(hidden_size, epsilon) if pre_layernorm else nn.Identity()
        self.layernorm = nn.LayerNorm(hidden_size, epsilon) if post_layernorm else nn.Identity()
        self.dropout = nn.Dropout(dropout)

    def around(self, hidden: Tensor, work: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the half's output for *hidden*."""
        new = self.dropout(work(self.pre_layernorm(hidden)))
        if self._is_precise:
            total = (hidden.to(torch.promote_types(hidden.dtype, torch.float32)) + new).to(hidden.dtype)
        else:
            total = hidden + new
        output: Tensor = self.layernorm(total)
        return output


class DistributedAttentionLayer(_Half):
    """Multi-head attention whose heads are divided among the tensor parallel ranks.

    Takes (hidden states, attention mask), with cross_attention (hidden states, cross states, attention mask). The mask
    is added to the scores: None on all tensor parallel ranks, or a tensor that broadcasts to (samples, heads, queries,
    keys). Returns the new hidden states. causal_mask_size not None: a query sees no later keys. fused_softmax False:
    the scores are computed as such, and their softmax in fp32 at least. attention_in_fp32: scores, softmax and its
    product with the values are fp32 at least. scale_attention_scores False: without the division by the root of
    attention_head_size.

    Raises:
        SMPError: the tensor parallel degree does not divide the heads.
    """

    def __init__(
        self,
        num_attention_heads: int = 32,
        attention_head_size: int = 32,
        hidden_size: int = 1024,
        attention_dropout_prob: float = 0.1,
        hidden_dropout_prob: float = 0.1,
        layernorm_epsilon: float = 1e-5,
        initializer_range: float = 0.02,
        use_normal_initialization: bool = False,
        cross_attention: bool = False,
        causal_mask_size: int | None = None,
        pre_layernorm: bool = False,
        post_layernorm: bool = True,
        fused_softmax: bool = True,
        attention_in_fp32: bool = False,
        fp32_residual_addition: bool = False,
        scale_attention_scores: bool = True,
    ) -> None:
        norms = (layernorm_epsilon, pre_layernorm, post_layernorm)
        super().__init__(hidden_size, hidden_dropout_prob, *norms, precise=fp32_residual_addition)
        if num_attention_heads % get_group().size:
            raise SMPError(
                f"smp.nn: expected num_attention_heads that tensor_parallel_degree {get_group().size} divides, found "
                f"{num_attention_heads}: change one of them"
            )
        deviation = initializer_range if use_normal_initialization else None
        wide = num_attention_heads * attention_head_size
        self.query, self.key, self.value = (
            distribute_layer(nn.Linear(hidden_size, wide), _Inner, deviation) for _ in range(3)
        )
        self.dense = distribute_layer(nn.Linear(wide, hidden_size), _Outer, deviation)
        self._head_size, self._attention_dropout = attention_head_size, attention_dropout_prob
        self._crosses, self._is_causal, self._is_fused = cross_attention, causal_mask_size is not None, fused_softmax
        self._most = causal_mask_size
        self._is_precise_inside = attention_in_fp32
        self._scale = attention_head_size**-0.5 if scale_attention_scores else 1.0

    def forward(self, inputs: Any) -> Tensor:
        """Return the new hidden states for *inputs*, a tuple."""
        hidden, cross, mask = inputs if self._crosses else (inputs[0], None, inputs[1])
        if self._most is not None and hidden.shape[1] > self._most:
            raise SMPError(f"smp.nn: expected at most causal_mask_size {self._most} positions, found {hidden.shape[1]}")
        return self.around(hidden, lambda x: self._attend(x, cross, mask))

    def _attend(self, x: Tensor, cross: Tensor | None, mask: Tensor | None) -> Tensor:
        samples = x.shape[0]
        x = exchanges.spread_in(x)
        source = x if cross is None else exchanges.spread_in(cross)
        query, key, value = self._heads(self.query(x)), self._heads(self.key(source)), self._heads(self.value(source))
        dtype = value.dtype
        if self._is_precise_inside:
            query, key, value = (tensor.to(torch.promote_types(dtype, torch.float32)) for tensor in (query, key, value))
        bias = self._bias(mask, samples, query, key)
        dropout = self._attention_dropout if self.training else 0.0
        if self._is_fused:
            context = functional.scaled_dot_product_attention(query, key, value, bias, dropout, scale=self._scale)
        else:
            scores = query @ key.transpose(-1, -2) * self._scale
            scores = scores if bias is None else scores + bias
            precise = torch.promote_types(scores.dtype, torch.float32)
            shares = functional.dropout(functional.softmax(scores, -1, dtype=precise), dropout)
            context = shares.to(value.dtype) @ value
        out: Tensor = self.dense(context.to(dtype).transpose(1, 2).flatten(2))
        return out

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], -1, self._head_size).transpose(1, 2)

    def _bias(self, mask: Tensor | None, samples: int, query: Tensor, key: Tensor) -> Tensor | None:
        """Return what is added to the scores of the samples and heads that are here."""
        if mask is not None:
            while mask.dim() < 4:
                mask = mask.unsqueeze(0)
            mask = mask.to(query.dtype)
            if mask.shape[1] > 1:
                mask = slice_local(mask, 1)
            if mask.shape[0] > 1 or samples == 1:
                mask = exchanges.rows_of_all(mask)
        if not self._is_causal:
            return mask
        later = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=query.device).triu(1)
        causal = torch.zeros(later.shape, dtype=query.dtype, device=query.device).masked_fill(later, float("-inf"))
        return causal if mask is None else mask + causal


class DistributedTransformerOutputLayer(_Half):
    """The feed-forward half of a transformer layer, its inner features divided among the tensor parallel ranks.

    fused_bias_gelu names a kernel of AWS's; the activation is the same with and without.

    Raises:
        SMPError: an unknown activation.
    """

    def __init__(
        self,
        hidden_size: int = 1024,
        intermediate_size: int = 4096,
        hidden_dropout_prob: float = 0.1,
        activation: str = "gelu",
        layernorm_epsilon: float = 1e-5,
        initializer_range: float = 0.02,
        use_normal_initialization: bool = False,
        pre_layernorm: bool = False,
        post_layernorm: bool = True,
        fused_bias_gelu: bool = False,  # noqa: ARG002 - see above
        fp32_residual_addition: bool = False,
    ) -> None:
        norms = (layernorm_epsilon, pre_layernorm, post_layernorm)
        super().__init__(hidden_size, hidden_dropout_prob, *norms, precise=fp32_residual_addition)
        if activation not in ACTIVATIONS:
            hint = did_you_mean(activation, ACTIVATIONS) or "Known: " + ", ".join(ACTIVATIONS) + "."
            raise SMPError(f"smp.nn: expected an activation, found {activation!r}. {hint}")
        deviation = initializer_range if use_normal_initialization else None
        self.dense1 = distribute_layer(nn.Linear(hidden_size, intermediate_size), _Inner, deviation)
        self.dense2 = distribute_layer(nn.Linear(intermediate_size, hidden_size), _Outer, deviation)
        self._activation = ACTIVATIONS[activation]

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the new hidden states."""
        return self.around(hidden, lambda x: self.dense2(self._activation(self.dense1(exchanges.spread_in(x)))))


class DistributedTransformerLayer(nn.Module):
    """Attention, with add_cross_attention that to other states too, and the feed-forward half.

    Takes and returns (hidden states, attention mask), with add_cross_attention (hidden states, cross states, attention
    mask, cross mask); masks as in DistributedAttentionLayer.
    """

    def __init__(
        self,
        num_attention_heads: int = 32,
        attention_head_size: int = 32,
        hidden_size: int = 1024,
        intermediate_size: int = 4096,
        attention_dropout_prob: float = 0.1,
        hidden_dropout_prob: float = 0.1,
        activation: str = "gelu",
        layernorm_epsilon: float = 1e-5,
        initializer_range: float = 0.02,
        use_normal_initialization: bool = False,
        causal_mask_size: int | None = None,
        add_cross_attention: bool = False,
        pre_layernorm: bool = False,
        post_layernorm: bool = True,
        fused_softmax: bool = True,
        fused_bias_gelu: bool = False,
        attention_in_fp32: bool = False,
        fp32_residual_addition: bool = False,
        scale_attention_scores: bool = True,
    ) -> None:
        super().__init__()
        shared: dict[str, Any] = {
            "hidden_size": hidden_size,
            "hidden_dropout_prob": hidden_dropout_prob,
            "layernorm_epsilon": layernorm_epsilon,
            "initializer_range": initializer_range,
            "use_normal_initialization": use_normal_initialization,
            "pre_layernorm": pre_layernorm,
            "post_layernorm": post_layernorm,
            "fp32_residual_addition": fp32_residual_addition,
        }
        attention: dict[str, Any] = {
            "num_attention_heads": num_attention_heads,
            "attention_head_size": attention_head_size,
            "attention_dropout_prob": attention_dropout_prob,
            "fused_softmax": fused_softmax,
            "attention_in_fp32": attention_in_fp32,
            "scale_attention_scores": scale_attention_scores,
            **shared,
        }
        self.attention = DistributedAttentionLayer(causal_mask_size=causal_mask_size, **attention)
        self.cross_attention = (
            DistributedAttentionLayer(cross_attention=True, **attention) if add_cross_attention else None
        )
        self.output = DistributedTransformerOutputLayer(
            intermediate_size=intermediate_size, activation=activation, fused_bias_gelu=fused_bias_gelu, **shared
        )

    def forward(self, inputs: Any) -> Any:
        """Return *inputs*, a tuple, with new hidden states."""
        hidden, *others = inputs
        if self.cross_attention is None:
            hidden = self.attention((hidden, others[0]))
        else:
            cross, mask, cross_mask = others
            hidden = self.cross_attention((self.attention((hidden, mask)), cross, cross_mask))
        return (self.output(hidden), *others)


class DistributedTransformer(nn.Module):
    """*num_layers* DistributedTransformerLayers (`seq_layers`); takes and returns what one does."""

    def __init__(self, num_layers: int = 12, **layer: Any) -> None:
        super().__init__()
        self.seq_layers = nn.Sequential(*(DistributedTransformerLayer(**layer) for _ in range(num_layers)))

    def forward(self, inputs: Any) -> Any:
        """Return *inputs*, a tuple, with the last layer's hidden states."""
        return self.seq_layers(inputs)
