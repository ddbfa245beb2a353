"""What smp.nn's transformer layers refuse."""

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"fused_bias_gelu": True}, "expected fused_bias_gelu=False, found True"),
        ({"activation": "gellu"}, "expected an activation, found 'gellu'. Did you mean gelu"),
    ],
)
def test_a_layer_without_what_was_asked_for_is_refused(given: dict[str, object], said: str) -> None:
    from toolkit.modelparallel.errors import SMPError
    from toolkit.modelparallel.torch.tensor.transformer import DistributedTransformerOutputLayer

    with pytest.raises(SMPError, match=said):
        DistributedTransformerOutputLayer(8, 16, **given)  # type: ignore[arg-type]
