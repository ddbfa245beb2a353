"""Private names of frameworks and of CPython stay in rank/frameworks."""

import ast
from pathlib import Path

import pytest

from tests.project import fence

PACKAGE = Path(__file__).parents[2] / "toolkit"
AT_START = "runs at the start of every Python of a rank, or of every rank: it imports nothing that it can do without"
# By file: the names that stay there, and why.
ALLOWED: dict[str, tuple[tuple[str, ...], str]] = {
    "cli/main.py": (("_datetime",), "the C module alone, in place of datetime's Python, at every start of `train`"),
    "rank/hook/rank_shim.py": (("_signal", "_socket"), AT_START),
    "rank/hook/site/sitecustomize.py": (("_excepthook", "_socket"), AT_START),
    "rank/profiler/status_hooks.py": (("_listener",), "the toolkit's own: toolkit/status.py, which the script imports"),
    "train/probe/port.py": (("_socket",), "the C module alone, in place of socket's Python, at every start of `train`"),
}


def test_private_names_of_others_stay_behind_the_fence() -> None:
    assert fence.faults(PACKAGE, ALLOWED) == []


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("import torch._dynamo", "torch._dynamo"),
        ("from torch import _C", "torch._C"),
        ("def late():\n    from tensorflow.python.eager import context", "tensorflow.python.eager.context"),
        ("from keras.src import backend", "keras.src.backend"),
        ("from jax._src import xla_bridge", "jax._src.xla_bridge"),
        ("tensor._version", "tensor._version"),
        ("module._buffers['x'] = 1", "module._buffers"),
        ("trainer._wrap_model = 1", "trainer._wrap_model"),
        ("class Scaler(Base):\n    def f(self):\n        return self._lazy", "self._lazy"),
        ("getattr(module, '_keras_mask', None)", "module._keras_mask"),
        ("setattr(module.Trainer, '_save', 1)", "module.Trainer._save"),
    ],
)
def test_a_private_name_is_found(text: str, name: str) -> None:
    assert name in [found for _, found in fence.private_names(ast.parse(text), {"_version", "_buffers"})]


@pytest.mark.parametrize(
    "text",
    [
        "from toolkit.rank import _hidden",
        "from . import _hidden",
        "class Own:\n    def __init__(self):\n        self._x = 1\n\ndef f(own):\n    return own._x",
        "class Heir(Base):\n    def f(self):\n        return self._inherited",
        "_x = 1\ngetattr(module, '_x')",
        "import os, sys, _thread\nos._exit(0), sys._getframe(1), pair._replace(a=1)",
        "module.__dict__, for_one._, graph._toolkit_last",
        "from smdistributed.dataparallel import _library",
    ],
)
def test_ones_own_and_documented_names_are_no_fault(text: str) -> None:
    assert list(fence.private_names(ast.parse(text), {"_inherited"})) == []


def test_a_name_that_is_allowed_and_gone_is_found(tmp_path: Path) -> None:
    package = tmp_path / "toolkit"
    (package / "rank/frameworks").mkdir(parents=True)
    (package / "a.py").write_text("x._gone\nx._other\n")
    (package / "rank/frameworks/torch.py").write_text("x._fenced\n")

    assert fence.faults(package, {"a.py": (("_gone", "_never"), "a reason")}) == [
        "a.py:2: x._other: belongs into rank/frameworks",
        "a.py: _never is allowed, and not touched",
    ]
