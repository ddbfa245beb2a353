"""The step timer: what it tells of the steps of scripts as users write them, and what it leaves alone."""

import json
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest

from tests.project.test_pythons import interpreters
from tests.rank.profiler.ranks import TENSORFLOW, Step, needs_torch, run, steps

MODEL = """
import time, torch
from torch.utils.data import DataLoader, Dataset
class Slow(Dataset):
    def __len__(self): return 8
    def __getitem__(self, at): time.sleep(0.01); return torch.full((4,), float(at))
torch.manual_seed(1)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(Slow(), batch_size=2)
"""


def parts(step: Step) -> int:
    return sum(part or 0 for part in (*step[4:9], *step[10:13]))


def only(folder: Path) -> list[Step]:
    (timed,) = steps(folder).values()
    return timed


@needs_torch
def test_each_step_has_its_parts_and_they_do_not_overlap(tmp_path: Path) -> None:
    code = """
for epoch in range(2):
    for batch in loader:
        time.sleep(0.03)
        loss = model(batch).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.save(model.state_dict(), "model.pt"); time.sleep(0.02)
print(loss.item())
"""
    measured = run(tmp_path, MODEL + code, starts=True)
    unmeasured = run(tmp_path, MODEL + code, TOOLKIT_STEP_TIMES="off")

    assert (measured.stderr, measured.stdout) == ("", unmeasured.stdout)
    timed = only(tmp_path)
    assert [(step.number, step.step) for step in timed] == [(n, n) for n in range(1, 9)]
    assert all(step.data is not None and step.data >= 20_000_000 for step in timed)
    assert all(step.pause is not None and step.pause >= 30_000_000 for step in timed)
    assert all(step.backward is not None and step.optimizer is not None for step in timed)
    assert [step.number for step in timed if step.saving is not None] == [5]
    assert all(step.whole is not None and parts(step) <= step.whole for step in timed)
    assert all(after.end - earlier.end == after.whole for earlier, after in pairwise(timed))


@needs_torch
def test_a_distributed_checkpoint_is_one_also_where_another_thread_writes_it(tmp_path: Path) -> None:
    code = """
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict_saver import save
torch.distributed.init_process_group("gloo", init_method="file://" + os.path.abspath("store"), rank=0, world_size=1)
goes_on = threading.Event()
class Waiting(dcp.FileSystemWriter):
    def write_data(self, plan, planner):
        goes_on.wait(60) if self.path.name == "three" else time.sleep(0.3)
        return super().write_data(plan, planner)
def step():
    model(torch.ones(2, 4)).sum().backward(); optimizer.step()
state = {"model": model.state_dict()}
step()
dcp.save(state, storage_writer=Waiting("one")); step()
save(state, storage_writer=Waiting("two")); step()
writing = dcp.async_save(state, storage_writer=Waiting("three")); step()
goes_on.set(); writing.result(); step()
dcp.load(state, checkpoint_id="three")
torch.distributed.destroy_process_group()
"""

    done = run(tmp_path, "import os, threading\n" + MODEL + code)

    assert done.returncode == 0, done.stderr
    saved_ms = [None if step.saving is None else step.saving // 1_000_000 for step in only(tmp_path)]
    assert [saved is None for saved in saved_ms] == [True, False, False, False, True]
    assert all(saved is not None and saved >= 300 for saved in saved_ms[1:3])
    assert saved_ms[3] is not None and saved_ms[3] < 50_000, "the caller did not wait for the other thread"


@needs_torch
def test_the_wait_for_other_ranks_is_no_own_part_of_backward(tmp_path: Path) -> None:
    code = """
import os
class Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x.clone()
    @staticmethod
    def backward(ctx, grad):
        time.sleep(0.5 if os.environ["RANK"] == "1" else 0.0)
        return grad
store = "file://" + os.path.abspath("../store")
torch.distributed.init_process_group("gloo", init_method=store, rank=int(os.environ["RANK"]), world_size=2)
model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(4):
    Slow.apply(model(torch.ones(2, 4))).sum().backward(); optimizer.step()
print([each.grad.tolist() for each in model.parameters()])
torch.distributed.destroy_process_group()
"""
    folders = [tmp_path / "0", tmp_path / "1"]
    for folder in folders:
        folder.mkdir()
    with ThreadPoolExecutor(2) as ranks:
        waiting, slow = ranks.map(lambda folder: run(folder, MODEL + code, RANK=folder.name), folders)

    assert (waiting.returncode, slow.returncode) == (0, 0), waiting.stderr + slow.stderr
    assert waiting.stdout == slow.stdout
    assert all(step.own_backward is not None and step.own_backward >= 500_000_000 for step in only(folders[1]))
    waits = [(step.backward or 0) - (step.own_backward or 0) for step in only(folders[0])]
    assert max(waits) >= 250_000_000, "one of four: on a busy machine this rank may come late itself"
    assert all(step.own_backward is not None for step in only(folders[0]))


@needs_torch
def test_pauses_evaluations_collections_and_late_saves_are_told_apart(tmp_path: Path) -> None:
    code = """
import gc
def step(): model(torch.ones(2, 4)).sum().backward(); optimizer.step(); optimizer.zero_grad()
for at in range(4): step()
time.sleep(0.3); step()
with torch.no_grad():
    for at in range(3): time.sleep(0.1); model(torch.ones(2, 4))
step()
kept = [[number] for number in range(500_000)]
step()
gc.collect(); step()
with torch.no_grad(): time.sleep(0.1); model(torch.ones(2, 4))
state = torch.zeros(20_000_000); torch.save(state, "last.pt")
"""
    done = run(tmp_path, MODEL + code, starts=True)

    assert (done.returncode, done.stderr) == (0, "")
    timed = only(tmp_path)
    assert timed[4].pause is not None and timed[4].pause >= 300_000_000
    assert timed[4].evaluation is None
    assert timed[5].evaluation is not None and timed[5].evaluation >= 300_000_000
    assert timed[5].pause is not None and timed[5].pause < 100_000_000
    assert timed[7].collection is not None
    assert all(step.whole is not None and parts(step) <= step.whole for step in timed[1:])
    (file,) = (tmp_path / "status").glob("pauses-*.json")
    late = json.loads(file.read_text())
    assert late["late_saving_s"] > 0
    assert late["late_evaluation_s"] >= 0.1


@needs_torch
def test_modules_whose_calls_are_watched_are_freed_copied_pickled_and_scripted_as_others(tmp_path: Path) -> None:
    code = """
import copy, gc, pickle, weakref
class Keeping(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 1)
    def forward(self, x): return self.inner(x)
    def __getstate__(self): return self.__dict__.copy()
gc.disable()
x = torch.ones(2, 4)
other = Keeping()
other(x).sum().backward(); optimizer.step()
freed = weakref.ref(other); del other
assert freed() is None
module = Keeping()
module(x).sum().backward(); optimizer.step()
for copied in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
    torch.nn.init.zeros_(copied.inner.weight); torch.nn.init.zeros_(copied.inner.bias)
    assert not copied(x).any() and module(x).any()
sharing = Keeping.__new__(Keeping)
sharing.__dict__ = module.__dict__.copy()
sharing._modules = copied._modules
assert not sharing(x).any() and module(x).any()
assert torch.equal(torch.jit.script(module)(x), module(x))
"""
    done = run(tmp_path, MODEL + code, starts=True)

    assert (done.returncode, done.stderr) == (0, "")


@needs_torch
@pytest.mark.parametrize("times", ["on", "off"])
def test_steps_go_on_after_one_of_another_optimizer_that_raised(tmp_path: Path, times: str) -> None:
    code = """
from toolkit.rank.profiler.step_timer import timer
class TooLarge(torch.optim.SGD):
    def step(self): raise MemoryError
def step(optimizer): model(torch.ones(2, 4)).sum().backward(); optimizer.step()
try: step(TooLarge(model.parameters(), lr=0.01))
except MemoryError: pass
for _ in range(3): step(optimizer)
print(timer().steps)
"""
    done = run(tmp_path, MODEL + code, starts=True, TOOLKIT_STEP_TIMES=times, TOOLKIT_PROFILE_WINDOW="steps 100 101")

    assert (done.returncode, done.stdout, done.stderr) == (0, "3\n", "")


@needs_torch
def test_a_process_that_may_not_start_a_thread_trains_on(tmp_path: Path) -> None:
    code = """
import threading
def start(thread): raise RuntimeError("can't start new thread")
threading.Thread.start = start
for _ in range(3): model(torch.ones(2, 4)).sum().backward(); optimizer.step()
"""
    done = run(tmp_path, MODEL + code, starts=True)

    assert (done.returncode, done.stderr) == (0, "")
    assert len(only(tmp_path)) == 3


@needs_torch
def test_the_compiler_of_a_whole_step_does_not_trace_the_timer(tmp_path: Path) -> None:
    code = """
from torch._dynamo.utils import counters
@torch.compile(backend="eager")
def step(x):
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()
for _ in range(5): step(torch.ones(2, 4))
print([reason for reason in counters["graph_break"] if "monotonic_ns" in reason or "get_ident" in reason])
"""
    done = run(tmp_path, MODEL + code, starts=True)

    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
    assert len(only(tmp_path)) == 5


@needs_torch
def test_the_compiler_of_the_optimizers_step_sees_no_function_that_the_timer_calls(tmp_path: Path) -> None:
    code = """
from torch._dynamo import convert_frame
seen, convert = [], convert_frame.ConvertFrame.__call__
def converts(self, frame, *more, **named):
    seen.append(frame.f_code.co_filename)
    return convert(self, frame, *more, **named)
convert_frame.ConvertFrame.__call__ = converts
step = torch.compile(optimizer.step, backend="eager")
for _ in range(5):
    model(torch.ones(2, 4)).sum().backward()
    step()
OWN = ("rank/profiler", "rank/mesh/measuring", "threading", "_weakrefset", "mmap")
print(bool(seen), [name for name in seen if any(part in name for part in OWN)])
"""
    done = run(tmp_path, MODEL + code, starts=True)

    assert (done.returncode, done.stdout) == (0, "True []\n"), done.stderr
    assert len(only(tmp_path)) == 5


@needs_torch
def test_the_cpu_time_of_a_pause_tells_waiting_from_computing_and_its_place_is_named(tmp_path: Path) -> None:
    code = """
def compute():
    end = time.thread_time() + 0.15
    while time.thread_time() < end: pass
for at in range(8):
    time.sleep(0.15) if at % 2 else compute()
    model(torch.ones(2, 4)).sum().backward(); optimizer.step()
"""
    done = run(tmp_path, MODEL + code, starts=True)

    assert (done.returncode, done.stderr) == (0, "")
    timed = only(tmp_path)[2:]
    assert all(step.pause_cpu is not None and step.cpu is not None for step in timed)
    assert [(step.pause_cpu or 0) >= 150_000_000 for step in timed] == [True, False] * 3
    (file,) = (tmp_path / "status").glob("pauses-*.json")
    places = {(stack["place"].partition(":")[0], stack["call"]) for stack in json.loads(file.read_text())["stacks"]}
    assert ("script.py", "time.sleep") in places


LOOPS = {
    "gradients of four batches accumulate": (
        "for at in range(12):\n"
        "    model(torch.ones(2, 4)).sum().backward()\n"
        "    if at % 4 == 3: optimizer.step(); optimizer.zero_grad()\n",
        3,
    ),
    "two optimizers take turns": (
        "second = torch.optim.Adam(model.parameters())\n"
        "for at in range(5):\n"
        "    for each in (optimizer, second): model(torch.ones(2, 4)).sum().backward(); each.step()\n",
        5,
    ),
    "a new optimizer takes over from its second step on": (
        "optimizer.step()\n"
        "optimizer = torch.optim.Adam(model.parameters())\n"
        "for at in range(5): model(torch.ones(2, 4)).sum().backward(); optimizer.step()\n",
        5,
    ),
    "an optimizer inside another one does not count": (
        "inner = optimizer\n"
        "class Outer(torch.optim.Optimizer):\n"
        "    def __init__(self): super().__init__(model.parameters(), {})\n"
        "    def step(self, closure=None): inner.step()\n"
        "optimizer = Outer()\n"
        "for at in range(5): model(torch.ones(2, 4)).sum().backward(); optimizer.step()\n",
        5,
    ),
    "LBFGS goes backward inside of its step": (
        "optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)\n"
        "def closure():\n"
        "    optimizer.zero_grad(); loss = model(torch.ones(2, 4)).pow(2).mean(); loss.backward(); return loss\n"
        "for at in range(5): optimizer.step(closure)\n",
        5,
    ),
    "the script replaces what we have wrapped": (
        "whole = torch.optim.SGD.step\n"
        "torch.optim.SGD.step = lambda self, closure=None: whole(self, closure)\n"
        "real = torch.autograd.backward\n"
        "torch.autograd.backward = lambda *given, **named: real(*given, **named)\n"
        "for at in range(5): model(torch.ones(2, 4)).sum().backward(); optimizer.step()\n",
        5,
    ),
    "the whole step is compiled": (
        "def step():\n"
        "    loss = model(torch.ones(2, 4)).sum(); loss.backward(); optimizer.step(); return loss\n"
        "step = torch.compile(step, backend='eager')\n"
        "for at in range(5): step()\n",
        5,
    ),
}
# Each loop in a child of one process: torch is imported once.
IN_CHILDREN = """
import os, sys, traceback
for name, loop in LOOPS.items():
    pid = os.fork()
    if pid == 0:
        try: exec(loop, globals()); status = 0
        except BaseException: traceback.print_exc(); status = 1
        os._exit(status)
    print(name, pid, os.waitpid(pid, 0)[1], sep=":")
"""


@needs_torch
def test_a_step_is_an_update_of_the_model(tmp_path: Path) -> None:
    loops = {name: loop for name, (loop, _) in LOOPS.items()}

    done = run(tmp_path, f"{MODEL}LOOPS = {loops!r}\n{IN_CHILDREN}")

    by_pid = steps(tmp_path)
    reports = [line.split(":") for line in done.stdout.splitlines()]
    assert [status for _, _, status in reports] == ["0"] * len(LOOPS), done.stderr
    assert {name: len(by_pid[int(pid)]) for name, pid, _ in reports} == {name: loop[1] for name, loop in LOOPS.items()}
    for rank_steps in by_pid.values():
        assert all(step.optimizer is not None for step in rank_steps)
        assert all(step.whole is None or parts(step) <= step.whole for step in rank_steps)


@needs_torch
def test_children_that_are_forked_or_spawned_have_files_of_their_own(tmp_path: Path) -> None:
    code = """
import os, torch, torch.multiprocessing as multiprocessing
def train(*_):
    model = torch.nn.Linear(4, 1); optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for at in range(3): model(torch.ones(2, 4)).sum().backward(); optimizer.step()
if __name__ == "__main__":
    train()
    pid = os.fork()
    if pid == 0: train(); os._exit(0)
    os.waitpid(pid, 0)
    multiprocessing.spawn(train, nprocs=1)
"""
    done = run(tmp_path, code)

    assert (done.returncode, done.stderr) == (0, "")
    by_pid = steps(tmp_path)
    assert [len(rank_steps) for rank_steps in by_pid.values()] == [3, 3, 3]
    assert all(rank_steps[0].number == rank_steps[0].step == 1 for rank_steps in by_pid.values())


@needs_torch
def test_loaders_and_saves_of_other_threads_and_of_evaluation_are_no_part_of_a_step(tmp_path: Path) -> None:
    code = """
import threading
def step(): model(torch.ones(2, 4)).sum().backward(); optimizer.step()
def beside():
    list(loader); torch.save(model.state_dict(), "beside.pt")
step()
with torch.no_grad(): list(loader)
thread = threading.Thread(target=beside); thread.start(); thread.join()
step()
"""
    done = run(tmp_path, MODEL + code)

    assert (done.returncode, done.stderr) == (0, "")
    assert [(step.data, step.saving) for step in only(tmp_path)] == [(None, None)] * 2


@pytest.mark.parametrize("place", ["installed", "absent", "another one of that name"])
def test_heartbeats_make_steps_where_no_optimizer_is_seen(tmp_path: Path, place: str) -> None:
    code = """
from toolkit import status
import time
for step in range(4):
    status.heartbeat(step)
    status.heartbeat(step)
    if step == 2:
        with status.holding_checkpoint(): time.sleep(0.02)
"""
    if place != "installed":
        code = "import sys\nprint('torch' in sys.modules)\n"
        if place != "absent":
            (tmp_path / "toolkit.py").write_text("theirs = 1\n")
            code += "import toolkit; print(toolkit.theirs)\n"
        done = run(tmp_path, code, path=None)
        assert (done.stdout.split(), done.stderr) == (["False", "1"][: 1 + (place != "absent")], "")
        return

    done = run(tmp_path, code, starts=True)

    assert (done.returncode, done.stderr) == (0, "")
    timed = only(tmp_path)
    assert [step.step for step in timed] == [1, 2, 3]
    assert [step.saving is not None for step in timed] == [False, False, True]


@needs_torch
def test_a_script_with_a_package_named_toolkit_keeps_it_and_its_steps_are_measured(tmp_path: Path) -> None:
    (tmp_path / "toolkit").mkdir()
    (tmp_path / "toolkit/__init__.py").write_text("theirs = 1\n")

    done = run(
        tmp_path,
        MODEL + "optimizer.step(); optimizer.step()\nimport toolkit; print(toolkit.theirs)\n",
        path=None,
    )

    assert (done.stdout, done.stderr) == ("1\n", "")
    assert len(only(tmp_path)) == 2


@needs_torch
def test_a_status_folder_that_cannot_be_written_leaves_the_script_alone(tmp_path: Path) -> None:
    done = run(
        tmp_path, MODEL + "optimizer.step(); optimizer.step(); print('on')\n", TOOLKIT_STATUS_FOLDER="/proc/absent"
    )

    assert (done.stdout, done.stderr) == ("on\n", "")


@pytest.mark.parametrize("version", list(interpreters()) or ["none"])
def test_the_hook_arms_on_every_python_installed_here(tmp_path: Path, version: str) -> None:
    pythons = interpreters()
    if not pythons:
        pytest.skip("no other Python is installed here")

    done = run(tmp_path, "import json; print('on')\n", python=pythons[version], path=None)

    assert (done.stdout, done.stderr) == ("on\n", "")


@pytest.mark.tensorflow
@pytest.mark.skipif(not TENSORFLOW.exists(), reason="no test bed: scripts/beds/tensorflow")
def test_the_batches_of_keras_are_steps(tmp_path: Path) -> None:
    code = """
import numpy, keras
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(numpy.ones((12, 4)), numpy.ones((12, 1)), batch_size=2, epochs=2, verbose=0)
"""
    done = run(tmp_path, code, python=TENSORFLOW, TF_CPP_MIN_LOG_LEVEL="3")

    assert done.returncode == 0, done.stderr
    timed = only(tmp_path)
    assert [step.step for step in timed] == list(range(1, 13))
    assert all(step.whole is not None for step in timed)


@pytest.mark.tensorflow
@pytest.mark.skipif(not TENSORFLOW.exists(), reason="no test bed: scripts/beds/tensorflow")
def test_evaluation_of_keras_is_a_part_of_the_next_step(tmp_path: Path) -> None:
    code = """
import time, numpy, keras
class Slow(keras.callbacks.Callback):
    def on_test_batch_end(self, batch, logs=None):
        time.sleep(0.1)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
x, y = numpy.ones((12, 4)), numpy.ones((12, 1))
model.fit(x, y, batch_size=4, epochs=3, verbose=0, validation_data=(x, y), callbacks=[Slow()])
"""
    done = run(tmp_path, code, python=TENSORFLOW, TF_CPP_MIN_LOG_LEVEL="3")

    assert done.returncode == 0, done.stderr
    evaluated = {step.step: step.evaluation for step in only(tmp_path) if step.evaluation}
    assert set(evaluated) == {4, 7}  # The third evaluation follows the last step.
    assert all(took_ns >= 100_000_000 for took_ns in evaluated.values())


@pytest.mark.tensorflow
@pytest.mark.skipif(not TENSORFLOW.exists(), reason="no test bed: scripts/beds/tensorflow")
def test_updates_of_a_tensorflow_loop_are_steps_until_fit_is_seen(tmp_path: Path) -> None:
    code = """
import numpy, keras, tensorflow as tf
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
optimizer = keras.optimizers.SGD(0.01)
def update(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(x) ** 2)
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return loss
compiled = tf.function(update)
within = tf.function(lambda x: compiled(x) * 2)
evaluate = tf.function(lambda x: model(x))
for _ in range(5):
    compiled(tf.ones((2, 4))); evaluate(tf.ones((2, 4)))
for _ in range(4): within(tf.ones((2, 4)))
for _ in range(4): update(tf.ones((2, 4)))
model.compile("sgd", "mse")
model.fit(numpy.ones((6, 4)), numpy.ones((6, 1)), batch_size=2, epochs=1, verbose=0)
"""
    done = run(tmp_path, code, python=TENSORFLOW, TF_CPP_MIN_LOG_LEVEL="3")

    assert done.returncode == 0, done.stderr
    # Another function, or optimizer, takes over with its second update: 5, then 4 - 1, 4 - 1, and three batches.
    assert [step.number for step in only(tmp_path)] == list(range(1, 15))
