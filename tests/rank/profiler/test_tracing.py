"""Windows of torch.profiler and tf.profiler: what is asked for is traced, and the script runs as without them."""

import json
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.rank.profiler.ranks import ROOT, TENSORFLOW, listed, needs_torch, run, steps, trace, traced_steps
from toolkit.rank.profiler import trace_files, trace_plan, window
from toolkit.status_pages import pages
from toolkit.traces import chrome, windows
from toolkit.train.launchers.compat import FOLDER
from toolkit.train.launchers.environment import HOOK

MODEL = """
import os, time, torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(1)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def train(count):
    for (batch,) in DataLoader(TensorDataset(torch.ones(2 * count, 4)), batch_size=2):
        loss = model(batch).pow(2).mean(); optimizer.zero_grad(); loss.backward(); optimizer.step()
    return loss.item()
"""
SEED = """
import NAME
SMProf = NAME.SMProfiler.instance()
config = NAME.Config()
config.profiler = {
"EnableCuda": "1",
}
SMProf.configure(config)
SMProf.start_profiling()
for step in range(COUNT):
    with NAME.annotate("Forward"):
        student_out = student_model(inp)
        loss = student_out.sum()
    with NAME.annotate("Backward"):
        loss.backward()
SMProf.stop_profiling()
"""


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [
        (10, 20, [(10, 20)]),
        (5, 5, [(5, 5)]),
        (1, 50, [(1, 20), (21, 40), (41, 50)]),
        (1, 160, [(index, index + 19) for index in range(1, 161, 20)]),
        (1, 7020, [(index, index + 19) for index in range(1, 7002, 1000)]),
    ],
)
def test_steps_are_cut_into_windows_within_the_budget(first: int, last: int, expected: list[tuple[int, int]]) -> None:
    assert trace_plan.windows(first, last) == expected


def test_a_run_of_unknown_length_is_sampled_at_ever_longer_gaps_until_the_budget_is_used() -> None:
    starts = [trace_plan.next_start(11, written, step=0) for written in range(trace_plan.MOST_WINDOWS + 1)]

    assert starts == [11, 51, 131, 291, 611, 1251, 2531, 5091, None]
    assert trace_plan.next_start(11, 1, step=900) == 901


def test_the_end_of_a_step_moves_behind_the_optimizer_that_it_overlaps() -> None:
    text = (
        b'{"ph": "X", "cat": "a", "name": "ProfilerStep#3", "pid": 1, "tid": 1,\n "ts": 100.000,\n "dur": 50.500\n}'
        b'{"name": "Optimizer.step#SGD.step", "pid": 1, "tid": 1,\n "ts": 140.000,\n "dur": 20.000}'
        b'{"name": "ProfilerStep#4", "pid": 1, "tid": 1, "ts": 150.500, "dur": 49.500}'
    )

    aligned = trace_files.align_steps(text)

    assert aligned.replace(b'"ts": 100.000,\n "dur": 60.000', b"").count(b'"dur": 40.000') == 1
    assert b'"ts": 160.000, "dur": 40.000' in aligned


def test_a_process_is_named_by_its_rank_and_nothing_else_is_changed() -> None:
    text = b'{"ph": "M", "name": "process_name", "pid": 7,\n "args": {\n "name": "python3"\n }}, {"name": "python3"}'

    named = trace_files.name_process(text, 'rank 3 of "algo"')

    assert named == text.replace(b'{\n "name": "python3"', b'{\n "name": "rank 3 of \\"algo\\""')


@pytest.mark.parametrize(
    ("name", "spelled"),
    [("Forward", "Forward"), ('say "x"', "say 'x'"), ("a\\b\tc\nd", "a/b c d"), ("日本 é", "u65e5u672c xe9")],
)
def test_an_annotation_is_spelled_in_characters_that_kineto_writes(name: str, spelled: str) -> None:
    assert window.spell(name) == spelled


@needs_torch
def test_an_annotation_with_quotes_leaves_a_trace_that_can_be_read_and_that_names_the_rank(tmp_path: Path) -> None:
    code = MODEL + "train(2)\nimport smppy\nwith smppy.annotate('say \"ü\"'): train(4)\n"

    done = run(
        tmp_path,
        code,
        starts=True,
        TOOLKIT_PROFILE_WINDOW="steps 3 6",
        TOOLKIT_COMPAT_PATH=str(FOLDER / "smppy"),
    )

    assert done.returncode == 0, done.stderr
    events = trace(tmp_path, listed(tmp_path).windows[0])["traceEvents"]
    assert "say 'xfc'" in [event["name"] for event in events if event.get("cat") == "user_annotation"]
    assert next(event["args"]["name"] for event in events if event["name"] == "process_name") == "rank 0 of algo-1"


@needs_torch
def test_the_steps_that_the_job_asks_for_are_traced_and_nothing_else_changes(tmp_path: Path) -> None:
    measured = run(
        tmp_path,
        MODEL + "print(train(12))\n",
        starts=True,
        TOOLKIT_PROFILE_WINDOW="steps 3 6",
        TOOLKIT_STEP_TIMES="off",
    )
    plain = run(tmp_path, MODEL + "print(train(12))\n", TOOLKIT_STEP_TIMES="off")

    assert (measured.stdout, measured.stderr) == (plain.stdout, "")
    listing = listed(tmp_path)
    assert (listing.host, listing.rank, listing.framework, listing.steps_run, listing.steps_traced) == (
        "algo-1",
        0,
        "torch",
        12,
        4,
    )
    assert listing.share == pytest.approx(4 / 12)
    (window,) = listing.windows
    assert (window.file, window.reason) == ("steps-3-6/algo-1_rank-0.pt.trace.json.gz", "setting")
    content = trace(tmp_path, window)
    assert content["distributedInfo"]["rank"] == 0
    assert traced_steps(content) == [3, 4, 5, 6]
    assert sum(event["name"] == "aten::linear" for event in content["traceEvents"]) == 4
    assert chrome.read(tmp_path / "output/profiler/framework" / window.file).events  # The reader of reports takes it.
    assert sorted(path.name for path in (tmp_path / "status").iterdir()) == []


def test_the_list_of_traces_is_written_by_several_threads_at_the_same_time(tmp_path: Path) -> None:
    """Each trace is packed by a thread of its own, which then writes the list."""
    path = tmp_path / "list.json"

    def write(number: int) -> None:
        for _ in range(300):
            trace_files.write_json(str(path), {"windows": [number] * 50})

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(write, range(4)))

    assert len(set(json.loads(path.read_text())["windows"])) == 1
    assert list(tmp_path.iterdir()) == [path]


@needs_torch
def test_seconds_are_traced_in_the_main_thread_of_a_loop_without_an_optimizer(tmp_path: Path) -> None:
    code = """
import os, time, torch
parameter = torch.ones(4, requires_grad=True)
until = time.monotonic() + 60
while time.monotonic() < until and not os.path.exists("output/profiler/framework/algo-1_rank-0.json"):
    parameter.mul(2).sum().backward(); time.sleep(0.01)
"""
    done = run(tmp_path, code, TOOLKIT_PROFILE_WINDOW="seconds 0 9000")

    assert (done.returncode, done.stderr) == (0, "")
    window = listed(tmp_path).windows[0]
    assert (window.first_step, window.steps) == (None, 0)
    assert any(event["name"] == "aten::mul" for event in trace(tmp_path, window)["traceEvents"])


@needs_torch
@pytest.mark.parametrize("name", ["smppy", "smprof"])
def test_the_snippet_of_the_old_profiler_runs_unchanged(tmp_path: Path, name: str) -> None:
    start = "import torch; student_model, inp = torch.nn.Linear(4, 1), torch.ones(2, 4)\n"

    done = run(
        tmp_path,
        start + SEED.replace("NAME", name).replace("COUNT", "70"),
        TOOLKIT_COMPAT_PATH=str(FOLDER / "smppy"),
        TOOLKIT_STEP_TIMES="on" if name == "smppy" else "off",
    )

    assert (done.returncode, done.stderr) == (0, "")
    first, second = listed(tmp_path).windows
    assert {window.reason for window in (first, second)} == {"smppy"}
    names = [event["name"] for event in trace(tmp_path, first)["traceEvents"] if event.get("cat") == "user_annotation"]
    # Steps begin with the annotation that came first: there is no optimizer.
    assert names.count("Forward") in (20, 21)
    assert names.count("Backward") == 20
    assert (second.first_step, second.last_step) == (41, 60)
    if name == "smppy":
        (rings,) = steps(tmp_path).values()
        assert len(rings) == 69
        assert all(step.forward is not None and step.backward is not None for step in rings)


@pytest.mark.parametrize("place", ["outside of a job", "without torch"])
def test_the_old_profiler_is_harmless(tmp_path: Path, place: str) -> None:
    code = """
import smppy, smprof
assert smppy.SMProfiler is smprof.SMProfiler
profiler = smppy.SMProfiler.instance()
config = smppy.Config()
config.profiler = {"EnableCuda": "1", "BucketCount": "32", "RecordFile": "smpfile_%p_%t.raw"}
profiler.configure(config)
profiler.start_profiling()
handle = smppy.annotation_begin("one"); smppy.annotation_end(handle); smppy.annotation_end(handle)
@smppy.annotate("two")
def doubled(number): return 2 * number
print(doubled(3), doubled.__name__)
profiler.stop_profiling(); profiler.stop_profiling()
"""
    output, status = ("", "") if place == "outside of a job" else (str(tmp_path / "output"), str(tmp_path / "status"))

    done = run(
        tmp_path,
        code,
        starts=True,
        TOOLKIT_COMPAT_PATH=str(FOLDER / "smppy"),
        SM_OUTPUT_DIR=output,
        TOOLKIT_STATUS_FOLDER=status,
    )

    assert (done.stdout, done.stderr) == ("6 doubled\n", "")
    assert not (tmp_path / "output").exists()


@needs_torch
def test_a_window_gives_way_to_the_scripts_own_profiler_and_does_not_begin_beside_it(tmp_path: Path) -> None:
    code = """
train(5)
with torch.profiler.profile() as own: train(3)
print(len(own.events()) > 20)
train(4)
with torch.profiler.profile(): train(20)
"""
    done = run(tmp_path, MODEL + code, TOOLKIT_PROFILE_WINDOW="steps 4 26", TOOLKIT_STEP_TIMES="off")

    assert done.stdout == "True\n"
    assert [line for line in done.stderr.splitlines() if "[toolkit]" in line] == [
        "[toolkit] profiler: the trace ends here: the script starts its own profiler",
        "[toolkit] profiler: no trace of steps from 24 on: the script's own profiler is running",
    ]
    (window,) = listed(tmp_path).windows
    assert (window.first_step, window.last_step) == (4, 5)


@needs_torch
def test_what_was_traced_before_an_exception_is_written(tmp_path: Path) -> None:
    done = run(tmp_path, f"{MODEL}train(7)\nmodel(torch.ones(3, 5))\n", TOOLKIT_PROFILE_WINDOW="steps 5 20")

    assert done.returncode == 1
    assert "RuntimeError" in done.stderr.splitlines()[-1]
    (window,) = listed(tmp_path).windows
    assert traced_steps(trace(tmp_path, window)) == [5, 6, 7]


@needs_torch
def test_a_child_that_is_forked_inside_a_window_traces_on_its_own_account_or_not_at_all(tmp_path: Path) -> None:
    code = """
train(5)
pid = os.fork()
if pid == 0:
    loss = train(1); print(torch.autograd._profiler_enabled() and "child records"); os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
list(DataLoader(TensorDataset(torch.ones(8, 4)), num_workers=2))
train(5)
"""
    done = run(tmp_path, MODEL + code, TOOLKIT_PROFILE_WINDOW="steps 4 8")

    assert (done.returncode, done.stderr) == (0, "")
    (window,) = listed(tmp_path).windows
    assert traced_steps(trace(tmp_path, window)) == [4, 5, 6, 7, 8]


@needs_torch
def test_a_child_that_is_forked_once_a_window_was_open_ends_as_it_would_without(tmp_path: Path) -> None:
    code = """
import sys
def fork():
    pid = os.fork()
    if pid == 0:
        train(9); print("trained", end=" "); sys.exit(3)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
train(5); fork()
train(4); fork()
"""
    done = run(tmp_path, MODEL + code, TOOLKIT_PROFILE_WINDOW="steps 4 8")

    assert (done.returncode, done.stdout) == (0, "trained 3\ntrained 3\n")
    line = "[toolkit] profiler: no traces in this process: it was forked after a trace of its parent had begun\n"
    assert done.stderr == 2 * line


@needs_torch
def test_a_full_disk_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "output").write_text("a file where the folder would be")

    done = run(tmp_path, MODEL + "train(9); print('on')\n", TOOLKIT_PROFILE_WINDOW="steps 3 4")

    assert done.stdout == "on\n"
    (line,) = done.stderr.splitlines()
    assert line.startswith("[toolkit] profiler: no more traces in this process: NotADirectoryError")


@needs_torch
def test_requests_are_answered_while_the_rank_runs_and_sigterm_ends_it_at_once(tmp_path: Path) -> None:
    (tmp_path / "status").mkdir()
    pages.create_request_page(tmp_path / "status")
    # The default of SIGTERM: a rank inside of a window ends at once, and leaves no part of a file.
    code = MODEL + "print('up', flush=True)\nwhile True: train(5); time.sleep(0.005)\n"
    (tmp_path / "script.py").write_text(code)
    environ = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": f"{HOOK}:{ROOT}",
        "TOOLKIT_STATUS_FOLDER": str(tmp_path / "status"),
        "SM_OUTPUT_DIR": str(tmp_path / "output"),
        "SM_CURRENT_HOST": "algo-1",
        "RANK": "3",
        "TOOLKIT_STEP_TIMES": "on",
    }
    argv = [sys.executable, "script.py"]
    with subprocess.Popen(argv, cwd=tmp_path, env=environ, stdout=subprocess.PIPE) as rank:
        guard = threading.Timer(240, rank.kill)
        guard.start()
        assert rank.stdout is not None
        rank.stdout.readline()
        assert pages.request_trace(tmp_path / "status", steps=2, ranks=(0, 1)) == 1  # Other ranks.
        completed = subprocess.run(
            [sys.executable, "-m", "toolkit", "profile", "--steps", "4", "--ranks", "3", "--wait", "150"],
            env={**os.environ, "PYTHONPATH": str(ROOT), "SAGEMAKER_BASE_DIR": str(tmp_path)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=200,
        )
        pages.request_trace(tmp_path / "status", steps=20)
        rank.send_signal(signal.SIGTERM)
        assert rank.wait(60) == -signal.SIGTERM
        guard.cancel()

    framework = tmp_path / "output/profiler/framework"
    (listing,) = windows.read(framework)
    first = listing.windows[0]
    path = framework / first.file
    assert (completed.stdout, completed.stderr, completed.returncode) == (
        f"rank 3: steps {first.first_step} to {first.last_step}: {path}\n",
        "",
        0,
    )
    assert [(window.request, window.steps) for window in listing.windows][:1] == [(2, 4)]
    assert not list(framework.rglob("*.part"))


def test_the_requests_of_a_host_are_counted_and_one_to_all_hosts_keeps_its_number(tmp_path: Path) -> None:
    pages.create_request_page(tmp_path)

    first = pages.request_trace(tmp_path, steps=5)
    of_job = pages.request_trace(tmp_path, steps=5, ranks=(0, 1), number=-1)
    third = pages.request_trace(tmp_path, steps=5)

    assert (first, of_job) == (1, -1)
    assert third not in (first, of_job) and third > 0


@pytest.mark.parametrize(("steps", "ranks"), [(0, ()), (21, ()), (5, (1, 2, 3))])
def test_a_request_that_no_rank_can_answer_is_refused(tmp_path: Path, steps: int, ranks: tuple[int, ...]) -> None:
    pages.create_request_page(tmp_path)

    with pytest.raises(ValueError, match="at most two ranks and 1 to 20 steps"):
        pages.request_trace(tmp_path, steps=steps, ranks=ranks)


@pytest.mark.tensorflow
@pytest.mark.skipif(not TENSORFLOW.exists(), reason="no test bed: scripts/beds/tensorflow")
def test_a_job_of_keras_is_traced_by_tensorflow(tmp_path: Path) -> None:
    code = """
import numpy, keras
from toolkit.rank.profiler import smppy
class Annotated(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        self.handle = smppy.annotation_begin("Batch")
    def on_train_batch_end(self, batch, logs=None):
        smppy.annotation_end(self.handle)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(numpy.ones((24, 4)), numpy.ones((24, 1)), batch_size=2, verbose=0, callbacks=[Annotated()])
"""
    done = run(tmp_path, code, python=TENSORFLOW, TF_CPP_MIN_LOG_LEVEL="3", TOOLKIT_PROFILE_WINDOW="steps 3 6")

    assert done.returncode == 0, done.stderr
    listing = listed(tmp_path)
    (window,) = listing.windows
    assert (listing.framework, window.first_step, window.last_step) == ("tensorflow", 3, 6)
    content = trace(tmp_path, window)
    assert traced_steps(content) == [3, 4, 5, 6]
    by_name = {event["name"]: event for event in content["traceEvents"]}
    assert "ReadVariableOp" in by_name
    kinds = {event["name"]: event["cat"] for event in content["traceEvents"] if event["ph"] != "M"}
    assert (kinds["ReadVariableOp"], kinds["FunctionRun"], kinds["Batch"]) == ("cpu_op", "runtime", "user_annotation")
    # Steps and operators are on one clock.
    assert abs(by_name["ReadVariableOp"]["ts"] - by_name["ProfilerStep#3"]["ts"]) < 60e6
    assert chrome.read(tmp_path / "output/profiler/framework" / window.file).events
