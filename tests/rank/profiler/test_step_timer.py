"""The step timer: what it tells of the steps of scripts as users write them, and what it leaves alone."""

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
    return sum(each or 0 for each in (step.data, step.forward, step.backward, step.optimizer, step.saving))


def only(folder: Path) -> list[Step]:
    (found,) = steps(folder).values()
    return found


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
    found = only(tmp_path)
    assert [(step.number, step.step) for step in found] == [(n, n) for n in range(1, 9)]
    assert all(step.data is not None and step.data >= 20_000_000 for step in found)
    assert all(step.forward is not None and step.forward >= 30_000_000 for step in found)
    assert all(step.backward is not None and step.optimizer is not None for step in found)
    assert [step.number for step in found if step.saving is not None] == [5]
    assert all(step.whole is not None and parts(step) <= step.whole for step in found)
    assert all(after.end - before.end == after.whole for before, after in pairwise(found))


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
    assert [each is None for each in saved_ms] == [True, False, False, False, True]
    assert all(each is not None and each >= 300 for each in saved_ms[1:3])
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

    found = steps(tmp_path)
    told = [line.split(":") for line in done.stdout.splitlines()]
    assert [status for _, _, status in told] == ["0"] * len(LOOPS), done.stderr
    assert {name: len(found[int(pid)]) for name, pid, _ in told} == {name: loop[1] for name, loop in LOOPS.items()}
    for each in found.values():
        assert all(step.optimizer is not None for step in each)
        assert all(step.whole is None or parts(step) <= step.whole for step in each)


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
    found = steps(tmp_path)
    assert [len(each) for each in found.values()] == [3, 3, 3]
    assert all(each[0].number == each[0].step == 1 for each in found.values())


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
    found = only(tmp_path)
    assert [step.step for step in found] == [1, 2, 3]
    assert [step.saving is not None for step in found] == [False, False, True]


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
    found = interpreters()
    if not found:
        pytest.skip("no other Python is installed here")

    done = run(tmp_path, "import json; print('on')\n", python=found[version], path=None)

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
    found = only(tmp_path)
    assert [step.step for step in found] == list(range(1, 13))
    assert all(step.whole is not None for step in found)


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
