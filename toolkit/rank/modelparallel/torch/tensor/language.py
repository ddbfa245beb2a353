"""smp.nn.DistributedTransformerLMHead: embeddings, transformer layers and the head of a language model."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from toolkit.rank.modelparallel.torch.tensor.modules import DistributedEmbedding, DistributedLinear
from toolkit.rank.modelparallel.torch.tensor.transformer import DistributedTransformer, distribute_layer


class DistributedTransformerLMHead(nn.Module):
    """A language model as GPT-2 or BERT have it; the head shares the word embedding's weights.

    Takes (input ids, attention mask, token type ids, position ids, labels), or the first ones of them; with
    add_cross_attention cross states and cross mask come before the labels. The masks are of shape (samples, keys), 1
    where a key is seen and 0 where not. Returns the logits, with add_lm_head False the hidden states; with labels, the
    mean loss of predicting each next label (-100: of none). The other arguments are those of
    DistributedTransformerLayer.
    """

    def __init__(
        self,
        num_layers: int = 12,
        hidden_size: int = 1024,
        vocab_size: int = 30522,
        num_positions: int = 1024,
        hidden_dropout_prob: float = 0.1,
        layernorm_epsilon: float = 1e-5,
        num_token_types: int = 0,
        add_cross_attention: bool = False,
        add_lm_head: bool = True,
        initializer_range: float = 0.02,
        use_normal_initialization: bool = False,
        pre_layernorm: bool = False,
        post_layernorm: bool = True,
        **layer: Any,
    ) -> None:
        super().__init__()
        deviation = initializer_range if use_normal_initialization else None
        tables = [vocab_size, num_positions, num_token_types]
        embeddings: Any = (
            distribute_layer(nn.Embedding(count, hidden_size), DistributedEmbedding, deviation) if count else None
            for count in tables
        )
        self.word_embedding, self.position_embedding, self.token_type_embedding = embeddings
        self.layernorm = nn.LayerNorm(hidden_size, layernorm_epsilon)
        self.dropout = nn.Dropout(hidden_dropout_prob)
        self.transformer = DistributedTransformer(
            num_layers,
            hidden_size=hidden_size,
            hidden_dropout_prob=hidden_dropout_prob,
            layernorm_epsilon=layernorm_epsilon,
            add_cross_attention=add_cross_attention,
            initializer_range=initializer_range,
            use_normal_initialization=use_normal_initialization,
            pre_layernorm=pre_layernorm,
            post_layernorm=post_layernorm,
            **layer,
        )
        self.lm_head = None
        if add_lm_head:
            self.lm_head = DistributedLinear(hidden_size, vocab_size, bias=False)
            self.lm_head.weight = self.word_embedding.weight
        self._crosses, self._norms_last = add_cross_attention, pre_layernorm

    def forward(self, inputs: Any) -> Tensor:
        """Return logits, hidden states or the loss for *inputs*, input ids or a tuple."""
        values = [inputs] if isinstance(inputs, Tensor) else list(inputs)
        names = ["ids", "mask", "types", "positions", *(["cross", "cross_mask"] if self._crosses else []), "labels"]
        arguments = dict(zip(names, values + [None] * (len(names) - len(values)), strict=True))
        hidden: Tensor = self._embedded(arguments["ids"], arguments["types"], arguments["positions"])
        mask, cross_mask = (_added(arguments.get(name), hidden) for name in ("mask", "cross_mask"))
        states = (hidden, arguments["cross"], mask, cross_mask) if self._crosses else (hidden, mask)
        hidden = self.transformer(states)[0]
        if self._norms_last:
            hidden = self.layernorm(hidden)
        if self.lm_head is None:
            return hidden
        logits: Tensor = self.lm_head(hidden)
        if arguments["labels"] is None:
            return logits
        scores = logits[:, :-1].flatten(0, 1)
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        return functional.cross_entropy(scores, arguments["labels"][:, 1:].flatten())

    def _embedded(self, ids: Tensor, types: Tensor | None, positions: Tensor | None) -> Tensor:
        if positions is None:
            positions = torch.arange(ids.shape[1], device=ids.device).expand(ids.shape)
        embedded_ids = self.word_embedding(ids) + self.position_embedding(positions)
        if self.token_type_embedding is not None:
            embedded_ids = embedded_ids + self.token_type_embedding(torch.zeros_like(ids) if types is None else types)
        embedded: Tensor = self.dropout(embedded_ids if self._norms_last else self.layernorm(embedded_ids))
        return embedded


def _added(mask: Tensor | None, hidden: Tensor) -> Tensor | None:
    """Return what a mask of ones and zeros, (samples, keys), adds to the scores."""
    if mask is None:
        return None
    return (1 - mask[:, None, None, :].to(hidden.dtype)) * torch.finfo(hidden.dtype).min
