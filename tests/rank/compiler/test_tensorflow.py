"""TensorFlow's training loops, compiled without a change: what is compiled, that losses stay, what is told of it."""

import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.commands.simulate.toolkit_run import ToolkitRun
from tests.tensorflow.bed import InBed, needs_bed

pytestmark = needs_bed
WHOLE, CALLS = "the whole step is compiled, as asked", "the model's forward and backward pass is compiled, as asked"
# What the log says of each case of tests/programs/tf_compiled.py; "": nothing.
SAID = {
    "fit": WHOLE,
    "many": WHOLE,
    "partial": WHOLE,
    "own_step": WHOLE,
    "saved": WHOLE,
    "explicit": "",
    "legacy": WHOLE,
    "shapes": WHOLE,
    "numpy": CALLS,
    "hopeless": "runs natively: the whole step cannot be compiled: InvalidArgumentError: Detected unsupported",
    "dropped": WHOLE,
    "flagged": "cannot be compiled for a later batch: InvalidArgumentError: Detected unsupported",
    "mirrored_alone": WHOLE,
    "mirrored": "runs natively: several devices in one process",
    "mirrored_to_one": CALLS,
    "mirrored_to_one_legacy": CALLS,
    "mirrored_loop": "runs natively: several devices in one process",
}
SHORT = ("fit", "own_step", "saved", "shapes", "hopeless")  # The others run with --all.
NEAR = 1e-4


class ManyCases(InBed):
    """A job of a dozen trainings, each of which is compiled."""

    deadline_s = 600


def losses(console: str) -> dict[str, list[float]]:
    found = re.findall(r"losses (\w+) ([-0-9. ]+)", console)
    return {name: [float(loss) for loss in values.split()] for name, values in found}


def told(job: ToolkitRun) -> dict[str, Any]:
    """Return what the compiler did, from outcome.json."""
    found = json.loads((job.folder / "hosts/algo-1/opt/ml/output/outcome.json").read_text())["compiler"]
    assert isinstance(found, dict)
    return found


@pytest.fixture(scope="module")
def consoles(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, str, dict[str, Any]]:
    """Return the consoles of the same loops native and compiled, and what was told of the compiled ones."""
    folder = tmp_path_factory.mktemp("native")
    chosen = {item.callspec.params.get("case") for item in request.session.items if hasattr(item, "callspec")}
    cases = ("--hyperparameter", f"cases={','.join(case for case in SAID if case in {*SHORT, *chosen})}")
    with ManyCases(folder, "tf_compiled.py", *cases) as native:
        assert native.end() == 0, native.console
    folder = tmp_path_factory.mktemp("compiled")
    with ManyCases(folder, "tf_compiled.py", *cases, TOOLKIT_COMPILE="on") as compiled:
        assert compiled.end() == 0, compiled.console
        return native.console, compiled.console, told(compiled)


@pytest.mark.parametrize(
    "case", [case if case in SHORT else pytest.param(case, marks=pytest.mark.long) for case in SAID]
)
def test_each_loop_is_compiled_as_far_as_xla_can_and_its_losses_stay(
    consoles: tuple[str, str, dict[str, Any]], case: str
) -> None:
    native, compiled = losses(consoles[0])[case], losses(consoles[1])[case]

    said = consoles[1].partition(f"case {case}\n")[2].partition("losses ")[0]
    assert SAID[case] in said
    assert SAID[case] or "compiler:" not in said
    assert len(compiled) == len(native)
    assert compiled == pytest.approx(native, abs=NEAR, rel=NEAR)


def test_a_native_job_says_nothing_of_a_compiler(consoles: tuple[str, str, dict[str, Any]]) -> None:
    assert "compiler:" not in consoles[0]


def test_a_batch_of_another_shape_is_named(consoles: tuple[str, str, dict[str, Any]]) -> None:
    said = consoles[1].partition("case shapes\n")[2]

    assert re.search(r"was compiled again at step 5, in \S+ s: x: shape=\(16, 16\).*, then shape=\(8, 16\)", said)


def test_what_was_compiled_is_told(consoles: tuple[str, str, dict[str, Any]]) -> None:
    found = consoles[2]

    assert (found["framework"], found["compile"], found["state"]) == ("tensorflow", "on", "compiled")
    assert found["compile_s"] > 0
    assert any("own_step" in name for name in found["modules"])
    assert not any("mirrored" in name for name in found["modules"])


def test_auto_measures_on_the_jobs_steps_and_keeps_the_faster(tmp_path: Path) -> None:
    with InBed(tmp_path, "tf_compiled.py", "--hyperparameter", "cases=long", TOOLKIT_COMPILE="auto") as job:
        assert job.end() == 0, job.console

    found = told(job)
    trial = found["trial"]
    assert found["state"] == ("compiled" if trial["kept"] else "eager")
    assert trial["kept"] == (trial["candidate_step_ms"] < 0.98 * trial["eager_step_ms"])
    assert found["steps"] == 240
    assert found["steady_step_ms"] > 0
    line = (
        r"sequential.fit (stays compiled|runs natively): the whole step compiled \S+ ms, native \S+ ms \(medians of \d+"
    )
    assert len(re.findall(line, job.console)) == 1


@pytest.mark.long
def test_a_batch_that_xla_refuses_during_the_trial_runs_natively(tmp_path: Path) -> None:
    with InBed(tmp_path, "tf_compiled.py", "--hyperparameter", "cases=flagged_long", TOOLKIT_COMPILE="auto") as job:
        assert job.end() == 0, job.console

        assert told(job)["state"] == "eager"
        assert "cannot be compiled for a later batch" in told(job)["reason"]


def test_the_training_compilers_flags_mean_auto_and_a_dump(tmp_path: Path) -> None:
    flags = ("sagemaker_training_compiler_enabled=true", "sagemaker_training_compiler_debug_mode=true")
    words = [word for flag in (*flags, "cases=plain") for word in ("--hyperparameter", flag)]
    with InBed(tmp_path, "tf_compiled.py", *words) as job:
        assert job.end() == 0, job.console

    found = told(job)
    assert (found["compile"], found["state"]) == ("auto", "trial")
    assert any("compiler/" in name and "step" in name for name in job.archive("output.tar.gz"))
    assert found["dump"].endswith("output/data/compiler")


@pytest.mark.long
def test_a_stop_while_it_trains_compiled_ends_as_ever(tmp_path: Path) -> None:
    with InBed(tmp_path, "tf_compiled.py", "--hyperparameter", "cases=for_ever", TOOLKIT_COMPILE="on") as job:
        job.until("stays compiled")
        job.signal(signal.SIGTERM)
        assert job.end() == 143, job.console

    assert told(job)["state"] == "compiled"


def test_an_error_that_a_handler_raises_while_a_step_is_compiled_ends_the_training(tmp_path: Path) -> None:
    """Not taken for a model that cannot be compiled, which would train on natively."""
    with InBed(tmp_path, "tf_stopped_compiling.py", TOOLKIT_COMPILE="on") as job:
        job.until("tracing 2")
        job.signal(signal.SIGTERM)
        assert job.end() == 143, job.console

    assert "saved after 1 steps" in job.console
    assert "runs natively" not in job.console
    assert "stays compiled" not in job.console


@pytest.mark.parametrize("legacy", [pytest.param("", marks=pytest.mark.long), "1"])
def test_a_script_that_imports_tensorflow_before_keras_is_compiled_too(tmp_path: Path, legacy: str) -> None:
    """TensorFlow then imports Keras before it is imported itself."""
    with InBed(tmp_path, "tf_first.py", TOOLKIT_COMPILE="on", TF_USE_LEGACY_KERAS=legacy) as job:
        assert job.end() == 0, job.console

    assert f"sequential.fit stays compiled: {WHOLE}" in job.console
