"""Arguments that smp.nn's transformer layers refuse."""

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.torch


def test_a_layer_without_what_was_asked_for_is_refused() -> None:
    from toolkit.rank.modelparallel.errors import SMPError
    from toolkit.rank.modelparallel.torch.tensor.transformer import DistributedTransformerOutputLayer

    with pytest.raises(SMPError, match=r"expected an activation, found 'gellu'\. Did you mean gelu"):
        DistributedTransformerOutputLayer(8, 16, activation="gellu")
