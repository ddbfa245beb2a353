"""A torch_xla whose tensors cannot be copied to the host is refused: each rank would train by itself."""

from types import ModuleType, SimpleNamespace

import pytest

from toolkit.rank.frameworks import torch_xla


def test_a_torch_xla_whose_tensors_cannot_be_read_is_refused() -> None:
    module = ModuleType("torch_xla")
    assert not torch_xla.is_torch_xla(module)

    vars(module)["_XLAC"] = SimpleNamespace(_xla_get_default_device=len, _xla_step_marker=len)
    assert torch_xla.is_torch_xla(module)
    with pytest.raises(ImportError, match=r"torch_xla has no _XLAC\._xla_get_cpu_tensors, .* install torch_xla 2\.9"):
        torch_xla.check_names(module)
