"""Private names of JAX that are missing turn off what needs them, and no more."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from toolkit.rank.frameworks import jax


def import_fakes(monkeypatch: pytest.MonkeyPatch, names: dict[str, Any]) -> None:
    """Let modules of JAX 0.99 be imported: their names, each with what it holds."""
    for name, content in {"jax": {"__version__": "0.99"}, "jax._src": {}, **names}.items():
        module = ModuleType(name)
        module.__path__ = []
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)


@pytest.mark.parametrize(
    ("content", "missing"),
    [
        (None, "jax 0.99 has no _src.distributed"),
        ({"shutdown": len}, "jax._src.distributed 0.99 has no initialize"),
        ({"initialize": len}, "jax._src.distributed 0.99 has no shutdown"),
    ],
)
def test_a_jax_that_joins_otherwise_is_left_alone(
    content: Any, missing: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import_fakes(monkeypatch, {} if content is None else {"jax._src.distributed": content})

    assert jax.find_distributed() is None
    assert capsys.readouterr().err.startswith(f"[toolkit] {missing}: the job's variables do not join ranks")


def test_the_functions_that_jax_itself_calls_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    import_fakes(monkeypatch, {"jax._src.distributed": {"initialize": len, "shutdown": len}})

    assert jax.find_distributed() is sys.modules["jax._src.distributed"]


@pytest.mark.parametrize(
    ("backends", "one"), [({}, False), ({"cpu": 1}, True), ({"cpu": 2}, False), ({"cpu": 1, "tpu": 1}, False)]
)
def test_a_process_with_one_cpu_device_is_told_from_others(
    backends: dict[str, int], one: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = {kind: SimpleNamespace(local_device_count=lambda count=count: count) for kind, count in backends.items()}
    import_fakes(monkeypatch, {"jax._src.xla_bridge": {"_backends": made}})

    assert jax.has_one_cpu_device() is one


def test_gloo_is_made_by_the_replacement(monkeypatch: pytest.MonkeyPatch) -> None:
    library = SimpleNamespace(make_gloo_tcp_collectives=lambda address: [address])
    import_fakes(monkeypatch, {"jax._src.xla_bridge": {"_jax": library}})

    jax.replace_gloo(lambda make: lambda address: [*make(address), "lo"])

    assert library.make_gloo_tcp_collectives("here") == ["here", "lo"]


def test_without_gloo_and_backends_jax_stays_as_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import_fakes(monkeypatch, {"jax._src.xla_bridge": {}})

    jax.replace_gloo(lambda make: make)

    assert jax.has_one_cpu_device() is False
    said = capsys.readouterr().err.splitlines()
    assert [line.partition(": ")[0] for line in said] == [
        "[toolkit] jax._src.xla_bridge 0.99 has no _jax.make_gloo_tcp_collectives",
        "[toolkit] jax._src.xla_bridge 0.99 has no _backends",
    ]
