"""Private names of TensorFlow and Keras that are missing turn off what needs them, and no more."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from toolkit.rank.frameworks import keras, tensorflow
from toolkit.rank.frameworks.private_names import MissingNameError


@pytest.fixture(autouse=True)
def without_tensorflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let tensorflow be a module without parts, of version 3.0."""
    module = ModuleType("tensorflow")
    vars(module)["__version__"] = "3.0"
    monkeypatch.setitem(sys.modules, "tensorflow", module)


@pytest.mark.parametrize("missing", tensorflow.OF_FUNCTION)
def test_a_function_without_a_name_is_not_compiled(missing: str) -> None:
    function = SimpleNamespace(**dict.fromkeys(tensorflow.OF_FUNCTION))
    tensorflow.check_functions(SimpleNamespace(function=lambda _: function))

    delattr(function, missing)
    with pytest.raises(MissingNameError, match=rf"^tensorflow 3\.0 has no Function\.{missing}$"):
        tensorflow.check_functions(SimpleNamespace(function=lambda _: function))


@pytest.mark.parametrize("missing", tensorflow.OF_OPERATION)
def test_an_operation_without_a_name_is_found(missing: str) -> None:
    operation = type("Operation", (), {name: None for name in tensorflow.OF_OPERATION if name != missing})

    with pytest.raises(MissingNameError, match=rf"^tensorflow 3\.0 has no Operation\.{missing}$"):
        tensorflow.check_operations(SimpleNamespace(Operation=operation))


def test_operations_run_one_after_the_other() -> None:
    class Operation:
        def __init__(self) -> None:
            self.waits_for: list[Any] = []
            self._set_control_flow_context = lambda _: None
            self._add_control_input = self.waits_for.append

    first, second, third = Operation(), Operation(), Operation()

    assert tensorflow.run_in_order([second, third], tensorflow.run_in_order([first], None)) is third
    assert [operation.waits_for for operation in (first, second, third)] == [[], [first], [second]]


def test_the_profilers_start_is_replaced_where_it_is_public(capsys: pytest.CaptureFixture[str]) -> None:
    public = SimpleNamespace(start=None)

    tensorflow.replace_profiler_start(SimpleNamespace(profiler=SimpleNamespace(experimental=public)), len)

    assert public.start is len
    assert capsys.readouterr().err.startswith("[toolkit] tensorflow 3.0 has no python.profiler.profiler_v2: a profiler")


def test_a_session_that_cannot_be_seen_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert tensorflow.is_profiling() is False

    err = capsys.readouterr().err
    assert "tensorflow 3.0 has no python.profiler.profiler_v2: " in err
    assert err.count("\n") == 1


def test_a_profile_without_its_format_is_not_read() -> None:
    with pytest.raises(MissingNameError, match=r"^tensorflow 3\.0 has no tsl\.profiler\.protobuf\.xplane_pb2$"):
        tensorflow.import_xplane()


def test_without_autograph_a_function_stays_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert tensorflow.convert_inner(len) is len
    assert tensorflow.convert_function(sys.modules["tensorflow"], len) is len
    assert capsys.readouterr().err == (
        "[toolkit] tensorflow 3.0 has no python.autograph.core: `if` and `for` that depend on tensors are not "
        "converted in a step function\n"
    )


def test_a_strategy_that_says_nothing_of_its_reduction_runs_natively(capsys: pytest.CaptureFixture[str]) -> None:
    said = SimpleNamespace(extended=SimpleNamespace(_cross_device_ops="one device"))

    assert tensorflow.find_cross_device_ops(said) == "one device"
    assert tensorflow.find_cross_device_ops(SimpleNamespace(extended=SimpleNamespace())) is None
    assert "has no MirroredExtended._cross_device_ops: steps on several devices run natively" in capsys.readouterr().err


def test_a_model_is_saved_with_the_setting_that_was_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    config: dict[str, Any] = {"jit_compile": False}

    keras.set_saved_jit(SimpleNamespace(_compile_config=SimpleNamespace(config=config)), "auto")
    keras.set_saved_jit(SimpleNamespace(), "auto")

    assert config == {"jit_compile": "auto"}
    assert capsys.readouterr().err == (
        "[toolkit] keras has no Model._compile_config.config: a saved model is not compiled when it is loaded\n"
    )


def test_a_model_of_keras_2_without_the_setting_runs_natively(capsys: pytest.CaptureFixture[str]) -> None:
    model = SimpleNamespace(_jit_compile=None)
    assert keras.has_legacy_jit(model)
    keras.set_legacy_jit(model, jit=True)
    assert model._jit_compile is True

    assert not keras.has_legacy_jit(SimpleNamespace())
    assert capsys.readouterr().err == "[toolkit] tf_keras has no Model._jit_compile: fit runs natively\n"


@pytest.mark.parametrize(("version", "lines"), [("2.15.0", 0), ("4.0.0", 1)])
def test_a_keras_that_clips_elsewhere_is_named(
    version: str, lines: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = ModuleType("keras")
    vars(module)["__version__"] = version
    monkeypatch.setitem(sys.modules, "keras", module)

    assert keras.find_clipping_module() is None
    assert (
        capsys.readouterr().err.count("keras 4.0.0 has no src.optimizers.base_optimizer.clip_by_global_norm") == lines
    )


def test_an_old_optimizer_whose_variables_cannot_be_made_says_what_to_do() -> None:
    with pytest.raises(MissingNameError, match="_create_all_weights: restore after the first step"):
        keras.build_legacy_optimizer(SimpleNamespace(), [])
