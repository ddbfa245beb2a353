"""Compiling that takes too long is given up inside of the process that trains, and the job goes on eager."""

from pathlib import Path

import pytest

from tests.rank.compiler.ranks import NET, QUICK, run
from tests.rank.profiler.ranks import needs_torch

GIVEN_UP = "takes longer than 1 s and was given up (TOOLKIT_COMPILE_BUDGET_S)"
# Compiling never ends: in Python; in Python that goes on after any Exception; and partly in __del__, where Python drops
# an exception that is raised in the thread.
ENDLESS = {
    "python": "while True: pass",
    "suppressed": "while True:\n        try:\n            while True: pass\n        except Exception: pass",
    "finalizer": (
        "import time\n"
        "    def spin():\n"
        "        end = time.monotonic() + 0.3\n"
        "        while time.monotonic() < end: pass\n"
        "    class Late:\n"
        "        def __del__(self): spin()\n"
        "    while True: Late(); spin()"
    ),
}
LOOP = """
import torch
def _endless(self, graph, inputs):
    {body}
torch._TorchCompileInductorWrapper.__call__ = _endless
"""
TRAINS = "print(train(Net(), 12))\n"


@needs_torch
@pytest.mark.parametrize(
    "kind", [kind if kind == "python" else pytest.param(kind, marks=pytest.mark.long) for kind in ENDLESS]
)
def test_compiling_without_end_is_given_up_and_the_losses_are_those_of_eager_steps(tmp_path: Path, kind: str) -> None:
    eager = run(tmp_path, NET + TRAINS)
    ran = run(tmp_path, NET + LOOP.format(body=ENDLESS[kind]) + TRAINS, compile="auto", budget_s=1)

    assert ran.stdout == eager.stdout and ran.codes == [0], ran.stderr
    assert len(ran.lines) == 1 and f"eager: compiling Net {GIVEN_UP}" in ran.lines[0], ran.stderr
    (facts,) = ran.facts
    assert facts["state"] == "eager" and GIVEN_UP in facts["reason"] and facts["steps"] == 12


ONE_RANK = """
import os, torch.distributed as dist
dist.init_process_group("gloo")
if dist.get_rank() == 1:
    import time
    def _endless(self, graph, inputs):
        while True: time.sleep(0.01)
    torch._TorchCompileInductorWrapper.__call__ = _endless
model = Net()
train(nn.parallel.DistributedDataParallel(model), 200)
print(sum(each.sum().item() for each in model.parameters()))
"""


@needs_torch
@pytest.mark.parametrize("mode", [pytest.param("auto", marks=pytest.mark.long), "on"])
def test_where_one_rank_gives_up_all_train_on_eagerly_and_equally(tmp_path: Path, mode: str) -> None:
    ran = run(tmp_path, QUICK + NET + ONE_RANK, compile=mode, budget_s=20, ranks=2)

    given_up = f"rank 1: compiling Net {GIVEN_UP}".replace("1 s", "20 s")
    assert ran.codes == [0, 0] and ran.stdout[0] == ran.stdout[1], ran.stderr
    assert [facts["state"] for facts in ran.facts] == ["eager", "eager"]
    assert all(given_up in facts["reason"] for facts in ran.facts)
    assert len(ran.lines) == 1 and given_up in ran.lines[0], ran.stderr


SLOW_COMPILER = """#!/bin/sh
echo $$ >> pids
sleep 900
"""
# As inductor does it: in threads of its own, for which the one that trains waits, or in that one.
WAITING = """
import subprocess
from concurrent.futures import ThreadPoolExecutor
def _compiles(self, graph, inputs):
    from torch._inductor.runtime.cache_dir_utils import cache_dir
    command = ["./g++", cache_dir() + "/kernel.cpp"]
    if {threads} == 1:
        subprocess.check_output(command)
    pool = ThreadPoolExecutor({threads})
    for future in [pool.submit(subprocess.check_output, command) for _ in range({threads} + 1)]:
        future.result()
torch._TorchCompileInductorWrapper.__call__ = _compiles
"""


@needs_torch
@pytest.mark.parametrize(("mode", "threads"), [pytest.param("auto", 4, marks=pytest.mark.long), ("on", 1)])
def test_a_compiler_that_does_not_end_is_killed_with_what_it_started(tmp_path: Path, mode: str, threads: int) -> None:
    (tmp_path / "g++").write_text(SLOW_COMPILER)
    (tmp_path / "g++").chmod(0o755)
    eager = run(tmp_path, NET + TRAINS)

    ran = run(tmp_path, NET + WAITING.format(threads=threads) + TRAINS, compile=mode, budget_s=10)

    assert ran.stdout == eager.stdout and ran.codes == [0], ran.stderr
    assert len(ran.lines) == 1 and GIVEN_UP.replace("1 s", "10 s") in ran.lines[0], ran.stderr
    started = (tmp_path / "pids").read_text().split()
    assert len(started) >= threads and not [pid for pid in started if Path(f"/proc/{pid}").exists()]


@needs_torch
def test_only_what_compiles_for_this_process_is_killed() -> None:
    from toolkit.rank.compiler.torch.budget import find_compiling  # It imports torch's package.

    cache = "/tmp/torchinductor_root/ab/x.cpp"
    processes = {
        10: (1, "python\0train.py"),
        11: (10, f"g++\0{cache}\0-o\0x.so"),
        12: (11, f"/usr/lib/cc1plus\0{cache}"),
        13: (10, f"/bin/sh\0/opt/bin/g++\0{cache}"),
        14: (13, "sleep\0900"),
        20: (10, "g++\0/opt/ml/code/own.cpp"),  # The script's own.
        21: (10, "tensorboard\0--logdir\0/tmp/torchinductor_root/logs"),
        30: (10, "python\0/site-packages/torch/_inductor/compile_worker/__main__.py\0--workers=2"),
        31: (30, "python\0/site-packages/torch/_inductor/compile_worker/__main__.py\0--workers=2"),
        32: (31, "ptxas\0kernel.ptx"),
        40: (1, f"g++\0{cache}"),  # Another rank's.
    }

    assert sorted(find_compiling(processes, 10)) == [11, 12, 13, 14, 31, 32]
