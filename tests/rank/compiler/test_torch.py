"""PyTorch models are compiled without a change to the script: what is found, kept, left alone, and said."""

import json
import os
import re
from pathlib import Path

import pytest

from tests.rank.compiler.ranks import DIVIDED, NET, QUICK, ROOT, run
from tests.rank.profiler.ranks import needs_torch
from toolkit.rank.compiler.torch.counting import advice

TRANSFORMERS = Path(os.environ.get("TOOLKIT_BEDS", ROOT / ".beds")).absolute() / "transformers/bin/python"


OWN = """
import copy, io, json, pickle
model = Net()
names = sorted(model.state_dict())
train(model, 12)
report = {"same names": sorted(model.state_dict()) == names}
copied = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
torch.save(model, io.BytesIO())
model.eval()
with torch.no_grad():
    outputs = [each.eval()(inputs) for each in (model, *copied)]
print(json.dumps(report | {"same outputs": [torch.allclose(output, outputs[0]) for output in outputs]}))
"""


@needs_torch
def test_the_models_own_state_copies_and_evaluation_are_as_without_a_compiler(tmp_path: Path) -> None:
    ran = run(tmp_path, DIVIDED + NET + OWN, compile="on")

    assert ran.codes == [0], ran.stderr
    assert json.loads(ran.stdout[0]) == {"same names": True, "same outputs": [True] * 3}
    assert (ran.facts[0]["state"], ran.facts[0]["modules"]) == ("compiled", ["Net"])


@needs_torch
def test_auto_says_both_figures_and_keeps_the_faster(tmp_path: Path) -> None:
    """The eager kernels by way of the compiler are never faster by the margin, for a model this small."""
    ran = run(tmp_path, QUICK + NET + "train(Net(), 400)\n", compile="auto")

    (facts,) = ran.facts
    assert facts["state"] in ("eager", "compiled") and facts["trial"]["pairs"] >= 6
    assert facts["trial"]["kept"] is (facts["state"] == "compiled")
    assert facts["trial"]["cost_s"] > 0 and facts["steps"] == 400
    assert len(ran.lines) == 1
    assert re.search(r"Net: [\d.]+ ms a step compiled, [\d.]+ ms eager \([\d.]+ times as fast, \d+ pairs", ran.lines[0])


FAILS = """
def _fails(self, graph, inputs):
    if any("modules_out" in node.name for node in graph.graph.nodes):  # The graph behind the break.
        raise RuntimeError("no code for this")
    from torch._dynamo.backends.registry import lookup_backend
    return lookup_backend("aot_eager")(graph, inputs)
torch._TorchCompileInductorWrapper.__call__ = _fails
class Broken(Net):
    def __init__(self):
        super().__init__()
        self.register_buffer("large", torch.zeros(600_000))  # More than 1 MiB.
    def forward(self, x):
        self.large.add_(x.mean())
        x = nn.functional.dropout(self.norm(self.a(x)), 0.5)
        torch._dynamo.graph_break()
        return self.out(x)
model = Broken()
print(train(model, 6), model.large.sum())
print(model.norm.running_mean.sum().item(), model.norm.num_batches_tracked.item(), torch.rand(1))
"""


@needs_torch
@pytest.mark.parametrize("mode", ["on", "auto"])
def test_a_model_that_fails_halfway_trains_on_eagerly_to_the_same_losses(tmp_path: Path, mode: str) -> None:
    """The first graph has run, with its BatchNorm and dropout, when the second does not compile."""
    eager = run(tmp_path, NET + FAILS)
    ran = run(tmp_path, NET + FAILS, compile=mode)

    assert ran.stdout == eager.stdout and ran.codes == [0], ran.stderr
    assert len(ran.lines) == 1 and "Broken does not compile" in ran.lines[0] and "no code for this" in ran.lines[0]
    (facts,) = ran.facts
    assert facts["state"] == "eager" and "no code for this" in facts["reason"]


@needs_torch
def test_an_error_of_the_script_comes_out_as_it_is(tmp_path: Path) -> None:
    code = (
        QUICK
        + NET
        + (
            "class Raises(Net):\n"
            "    def forward(self, x):\n"
            "        if x.shape[0] == 3:\n"
            "            raise ValueError('three')\n"
            "        return super().forward(x)\n"
            "model = Raises()\n"
            "train(model, 4)\n"
            "try:\n"
            "    model(inputs[:3])\n"
            "except ValueError as error:\n"
            "    print(error, error.__context__, error.__cause__)\n"
        )
    )

    ran = run(tmp_path, code, compile="on")

    assert ran.stdout == ["three None None\n"], ran.stderr
    assert ran.facts[0]["state"] == "compiled"


@needs_torch
@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("train(torch.compile(Net()), 4)\n", "torch.compile itself"),
        ("model = Net(); model.compile(); train(model, 4)\n", "torch.compile itself"),
        ("train(torch.jit.script(Net()), 4)\n", "TorchScript"),
        (
            "model = Net(); optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
            "for _ in range(4):\n"
            "    x = inputs.clone().requires_grad_()\n"
            "    (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)\n"
            "    optimizer.zero_grad(); slope.pow(2).sum().backward(); optimizer.step()\n",
            "gradients of gradients",
        ),
        (
            "model = Net(); optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
            "for _ in range(4):\n"
            "    optimizer.zero_grad(); loss = model(inputs).pow(2).mean()\n"
            "    loss.backward(create_graph=True)\n"
            "    weights = list(model.parameters())\n"
            "    torch.autograd.grad([each.grad.sum() for each in weights], weights, allow_unused=True)\n"
            "    optimizer.step()\n"
            "    for each in weights: each.grad = None\n",
            "gradients of gradients",
        ),
    ],
    ids=["compile", "Module.compile", "jit", "create_graph", "backward with create_graph"],
)
def test_what_a_script_does_for_itself_is_left_alone_and_said(tmp_path: Path, code: str, reason: str) -> None:
    ran = run(tmp_path, DIVIDED + NET + code, compile="auto")

    assert ran.codes == [0], ran.stderr
    assert len(ran.lines) == 1 and reason in ran.lines[0]
    assert ran.facts[0]["state"] == "eager" and reason in ran.facts[0]["reason"]


@needs_torch
def test_without_a_compiler_in_the_image_there_is_one_line(tmp_path: Path) -> None:
    ran = run(tmp_path, NET + "train(Net(), 4)\n", compile="auto", CXX="no-such-compiler")

    assert ran.codes == [0] and len(ran.lines) == 1
    assert "no C++ compiler (no-such-compiler)" in ran.lines[0] and ran.facts[0]["state"] == "eager"


MOODY = """
class Moody(Net):
    mood = ''
    def forward(self, x):
        return super().forward(x) * len(self.mood)
model = Moody()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(14):
    model.mood = 'x' * (step + 1)
    optimizer.zero_grad(); model(inputs).sum().backward(); optimizer.step()
"""
# With torch's own cure for changing shapes off, as it is for what the script marks as static.
SHAPES = """
torch._dynamo.config.automatic_dynamic_shapes = False
model = Net()
train(model, 2)
for rows in range(3, 14): train(model, 1, inputs=inputs[:rows], targets=targets[:rows])
"""
# Each step has an optimizer of its own: their steps are not taken for the job's.
OPTIMIZERS = f"""
kept, init = [], torch.optim.SGD.__init__
def keep(self, *arguments, **more):
    kept.append(self)
    init(self, *arguments, **more)
torch.optim.SGD.__init__ = keep
{SHAPES}"""


@needs_torch
@pytest.mark.parametrize(
    ("code", "reason", "advised", "not_advised"),
    [
        (MOODY, "mood", "hold a number that changes in a tensor", "drop_last"),
        (SHAPES, "size mismatch at index 0", "drop_last=True", "Shapes are not the reason"),
        pytest.param(
            OPTIMIZERS,
            "size mismatch at index 0",
            "drop_last=True",
            "Shapes are not the reason",
            marks=pytest.mark.long,
        ),
    ],
    ids=["a value", "shapes", "shapes, and an optimizer for each step"],
)
def test_a_storm_of_recompilations_is_said_once_with_the_advice_for_its_guard(
    tmp_path: Path, code: str, reason: str, advised: str, not_advised: str
) -> None:
    ran = run(tmp_path, QUICK + NET + code, compile="on")

    storms = [line for line in ran.lines if "torch's limit" in line]
    assert len(storms) == 1 and reason in storms[0], ran.stderr
    assert advised in storms[0] and not_advised not in storms[0]
    again = [each for each in ran.facts[0]["recompilations"] if reason in each["reason"]]
    assert max(each["count"] for each in again) >= 7 and "forward (script.py" in again[0]["function"]


@pytest.mark.parametrize(
    ("why", "is_of_shapes"),
    [
        ("tensor 'x' size mismatch at index 0. expected 32, actual 24", True),
        ("tensor 'x' rank mismatch. expected 2, actual 3", True),
        ("tensor 'x' stride mismatch at index 0. expected 64, actual 96", True),
        ("2 <= x.size()[0]  # _dynamo/output_graph.py:512", True),
        ("tensor 'x' dtype mismatch. expected Float, actual Double", False),
        ("self.mood == 'x'", False),
        ("GLOBAL_STATE changed: grad_mode", False),
        ("len(self._modules) == 3", False),
    ],
)
def test_the_advice_fits_the_guard_that_failed(why: str, is_of_shapes: bool) -> None:
    assert ("drop_last=True" in advice(why)) is is_of_shapes
    assert ("Shapes are not the reason" in advice(why)) is not is_of_shapes


@needs_torch
def test_a_changed_shape_is_told_with_the_guard_that_failed(tmp_path: Path) -> None:
    code = QUICK + NET + "model = Net()\ntrain(model, 4)\ntrain(model, 1, inputs=inputs[:12], targets=targets[:12])\n"

    ran = run(tmp_path, code, compile="on")

    (again,) = ran.facts[0]["recompilations"]
    assert "expected 16, actual 12" in again["reason"] and again["count"] == 1


@needs_torch
def test_bfloat16_gives_outputs_in_float32_and_auto_decides_by_figures(tmp_path: Path) -> None:
    code = NET + (
        "seen = set()\n"
        "model = Net(); model.a.register_forward_hook(lambda *each: seen.add(each[-1].dtype))\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for step in range(300):\n"
        "    output = model(inputs); optimizer.zero_grad(); output.sum().backward(); optimizer.step()\n"
        "    assert output.dtype == torch.float32\n"
        "print(sorted(map(str, seen)))\n"
    )

    on, auto = run(tmp_path, code, autocast="bf16"), run(tmp_path, code, autocast="auto")

    assert on.stdout == ["['torch.bfloat16', 'torch.float32']\n"], on.stderr
    assert on.facts[0]["autocast_state"] == "bf16" and on.facts[0]["modules"] == ["Net"]
    (facts,) = auto.facts
    assert facts["autocast_trial"]["kept"] is (facts["autocast_state"] == "bf16")
    assert len(auto.lines) == 1 and "ms a step bfloat16" in auto.lines[0]


@needs_torch
def test_both_networks_of_a_gan_are_compiled(tmp_path: Path) -> None:
    code = (
        QUICK
        + NET
        + (
            "class Critic(Net): pass\n"
            "maker, critic = Net(), Critic()\n"
            "first, second = (torch.optim.SGD(each.parameters(), lr=0.01) for each in (critic, maker))\n"
            "back = nn.Linear(10, 32)\n"
            "for step in range(6):\n"
            "    first.zero_grad(); critic(back(maker(inputs)).detach()).mean().backward(); first.step()\n"
            "    second.zero_grad(); critic(back(maker(inputs))).mean().backward(); second.step()\n"
        )
    )

    ran = run(tmp_path, code, compile="on")

    assert ran.codes == [0] and ran.facts[0]["state"] == "compiled", ran.stderr
    assert sorted(ran.facts[0]["modules"]) == ["Critic", "Linear", "Net"] and ran.facts[0]["steps"] == 6


PARALLEL = """
import os, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
model = Net()
"""


@needs_torch
def test_two_ranks_of_ddp_decide_the_same(tmp_path: Path) -> None:
    code = (
        DIVIDED
        + NET
        + PARALLEL
        + "losses = train(nn.parallel.DistributedDataParallel(model), 400)\nprint(losses[-1])\n"
    )

    ran = run(tmp_path, code, compile="auto", ranks=2)

    assert ran.codes == [0, 0], ran.stderr
    first, second = ran.facts
    assert first["trial"] == {**second["trial"], "cost_s": first["trial"]["cost_s"]} and first["trial"]["pairs"] >= 6
    assert first["state"] == second["state"] and first["modules"] == ["Net"]
    assert len(ran.lines) == 1


@needs_torch
def test_a_rank_that_ends_during_the_trial_hangs_nobody(tmp_path: Path) -> None:
    code = QUICK + NET + PARALLEL + "train(model, 600 if rank == 0 else 8)\nprint('done')\n"

    ran = run(tmp_path, code, compile="auto", ranks=2)

    assert ran.codes == [0, 0] and ran.stdout == ["done\n", "done\n"], ran.stderr
    assert {each["state"] for each in ran.facts} <= {"trial", "eager"}


@needs_torch
def test_the_units_of_fsdp2_are_compiled(tmp_path: Path) -> None:
    code = (
        DIVIDED
        + NET
        + PARALLEL
        + (
            "from torch.distributed.device_mesh import init_device_mesh\n"
            "from torch.distributed.fsdp import fully_shard\n"
            "class Block(nn.Module):\n"
            "    def __init__(self):\n"
            "        super().__init__()\n"
            "        self.a = nn.Linear(32, 32)\n"
            "    def forward(self, x):\n"
            "        return x + nn.functional.gelu(self.a(x))\n"
            "class Deep(nn.Module):\n"
            "    def __init__(self):\n"
            "        super().__init__()\n"
            "        self.blocks = nn.ModuleList([Block(), Block()])\n"
            "    def forward(self, x):\n"
            "        for each in self.blocks: x = each(x)\n"
            "        return x\n"
            "model = Deep()\n"
            "mesh = init_device_mesh('cpu', (2,))\n"
            "for each in (*model.blocks, model): fully_shard(each, mesh=mesh)\n"
            "print(train(model, 6)[-1])\n"
        )
    )

    ran = run(tmp_path, code, compile="on", ranks=2)

    assert ran.codes == [0, 0], ran.stderr
    for facts in ran.facts:
        assert (facts["state"], facts["modules"]) == ("compiled", ["Block"]) and facts["graphs"] >= 1


@needs_torch
@pytest.mark.transformers
@pytest.mark.skipif(not TRANSFORMERS.exists(), reason="no bed of transformers: scripts/beds/transformers makes it")
def test_a_trainer_of_hugging_face_is_compiled_unedited(tmp_path: Path) -> None:
    code = DIVIDED + (
        "from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments\n"
        "torch.manual_seed(0)\n"
        "model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=2, n_embd=32, vocab_size=100, n_positions=16))\n"
        "ids = torch.randint(0, 100, (64, 16))\n"
        "data = [{'input_ids': each, 'labels': each} for each in ids]\n"
        "arguments = TrainingArguments('out', max_steps=6, per_device_train_batch_size=8, use_cpu=True, report_to=[],\n"
        "    save_strategy='no', disable_tqdm=True, logging_steps=3)\n"
        "Trainer(model, arguments, train_dataset=data).train()\n"
    )

    ran = run(tmp_path, code, compile="on", python=TRANSFORMERS)

    assert ran.codes == [0], ran.stderr
    (facts,) = ran.facts
    assert (facts["state"], facts["modules"], facts["steps"]) == ("compiled", ["GPT2LMHeadModel"], 6)
    assert facts["graphs"] >= 1


@needs_torch
def test_a_trace_waits_until_the_trial_is_over(tmp_path: Path) -> None:
    code = QUICK + NET + "train(Net(), 300)\n"

    ran = run(
        tmp_path, code, compile="auto", TOOLKIT_PROFILE_WINDOW="steps 5 7", SM_OUTPUT_DIR=str(tmp_path / "output")
    )

    late = re.search(r"the trace begins (\d+) steps late, with step (\d+)", ran.stderr)
    assert late is not None and int(late[2]) == int(late[1]) + 5 > 14, ran.stderr
    assert list((tmp_path / "output/profiler/framework").iterdir())


STOPS = """
import os, signal
class Stop(Exception):
    pass
def stop(number, frame):
    signal.signal(number, signal.SIG_DFL)
    raise Stop("asked to stop")
signal.signal(signal.SIGTERM, stop)
"""
WHILE_COMPILING = """
def _stopped(self, graph, inputs):
    os.kill(os.getpid(), signal.SIGTERM)
    return _quick(self, graph, inputs)
torch._TorchCompileInductorWrapper.__call__ = _stopped
model = Net()
"""
IN_COMPILED_CODE = """
class Stopped(Net):
    calls = 0
    def forward(self, x):
        self.sends()
        return super().forward(x)
    @torch._dynamo.disable
    def sends(self):
        self.calls += 1
        if self.calls == 7:
            os.kill(os.getpid(), signal.SIGTERM)
model = Stopped()
"""


@needs_torch
@pytest.mark.parametrize("when", [WHILE_COMPILING, IN_COMPILED_CODE], ids=["compiling", "compiled"])
def test_an_error_that_a_signal_handler_raises_ends_the_step(tmp_path: Path, when: str) -> None:
    """A script that stops by `raise Stop` in its handler must not train on, as if the model did not compile."""
    code = "try:\n    train(model, 12)\nexcept Stop as error:\n    print('stopped:', error)\n"

    ran = run(tmp_path, QUICK + NET + STOPS + when + code, compile="on")

    assert ran.stdout == ["stopped: asked to stop\n"], ran.stderr
    assert not any("does not compile" in line for line in ran.lines)


@needs_torch
def test_a_job_that_ends_during_the_trial_says_so(tmp_path: Path) -> None:
    ran = run(tmp_path, QUICK + NET + "train(Net(), 6)\n", compile="auto")

    (facts,) = ran.facts
    assert (facts["state"], facts["steps"]) == ("trial", 6) and facts["compile_s"] > 0
    (line,) = ran.lines
    assert "ended before the trial did, after 6 steps of the job; compiling took" in line


OUTPUT = """
import dataclasses
@dataclasses.dataclass(frozen=True)
class Output:
    loss: torch.Tensor
    logits: torch.Tensor
    kept: object = dataclasses.field(default=None, init=False)
class Model(Net):
    def forward(self, x):
        logits = super().forward(x)
        return Output(nn.functional.cross_entropy(logits, targets), logits)
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    found = model(inputs)
    found.loss.backward()
    optimizer.step()
print(found.loss.dtype, found.logits.dtype, found.kept)
"""


@needs_torch
def test_a_dataclass_that_a_model_returns_has_float32_under_bfloat16(tmp_path: Path) -> None:
    ran = run(tmp_path, NET + OUTPUT, autocast="bf16")

    assert ran.stdout == ["torch.float32 torch.float32 None\n"], ran.stderr
    assert ran.facts[0]["autocast_state"] == "bf16"


@needs_torch
def test_a_full_folder_of_debug_mode_gets_no_further_graphs(tmp_path: Path) -> None:
    """The limit is lowered, and what torch writes for a graph stands in as a file of two MiB."""
    code = (
        QUICK
        + NET
        + (
            "import os, torch._inductor.config as inductor\n"
            "from toolkit.rank.compiler.torch import dump\n"
            "dump.MOST_BYTES = 1 << 20\n"
            "def _writes(self, graph, inputs):\n"
            "    if inductor.trace.enabled:\n"
            "        with open(os.path.join(FOLDER, 'graph-%d' % len(os.listdir(FOLDER))), 'wb') as file:\n"
            "            file.write(bytes(2 << 20))\n"
            "    return _quick(self, graph, inputs)\n"
            "torch._TorchCompileInductorWrapper.__call__ = _writes\n"
            "FOLDER = 'dump/rank-0'\n"
            "model = Net()\n"
            "train(model, 4)\n"
            "for rows in (3, 5, 7): train(model, 1, inputs=inputs[:rows], targets=targets[:rows])\n"
        )
    )

    ran = run(tmp_path, code, compile="on", debug=True)

    assert ran.codes == [0] and ran.facts[0]["compilations"] > 1, ran.stderr
    assert sorted(each.name for each in (tmp_path / "dump/rank-0").iterdir()) == ["compilations.json", "graph-0"]
    assert ran.stderr.count("has more than 1 MiB: torch writes no further graphs") == 1


ONE_RANK_FAILS = """
if rank == 1:
    def _fails(self, graph, inputs):
        raise RuntimeError("no code on this host")
    torch._TorchCompileInductorWrapper.__call__ = _fails
losses = train(nn.parallel.DistributedDataParallel(model), 400)
print(sum(each.sum().item() for each in model.parameters()))
"""


@needs_torch
@pytest.mark.parametrize("mode", ["on", "auto"])
def test_where_one_rank_cannot_compile_all_ranks_train_on_eagerly_and_equally(tmp_path: Path, mode: str) -> None:
    """The others have compiled it and are in the all-reduce of that step."""
    ran = run(tmp_path, QUICK + NET + PARALLEL + ONE_RANK_FAILS, compile=mode, ranks=2)

    assert ran.codes == [0, 0] and ran.stdout[0] == ran.stdout[1], ran.stderr
    for facts in ran.facts:
        assert facts["state"] == "eager" and facts["steps"] == 400
        assert "rank 1: Net does not compile" in facts["reason"] and "no code on this host" in facts["reason"]
    (line,) = ran.lines
    assert "eager: rank 1: Net does not compile" in line


@needs_torch
@pytest.mark.parametrize(
    ("mode", "refuses", "reason"),
    [
        ("auto", "os.environ['CXX'] = 'none-here'", "there is no C++ compiler (none-here) in the image"),
        pytest.param(
            "on",
            "os.environ['CXX'] = 'none-here'",
            "there is no C++ compiler (none-here) in the image",
            marks=pytest.mark.long,
        ),
        ("auto", "model = torch.compile(model, backend='eager')", "the script uses torch.compile itself"),
    ],
)
def test_a_rank_that_tries_nothing_keeps_no_other_waiting(tmp_path: Path, mode: str, refuses: str, reason: str) -> None:
    code = QUICK + NET + PARALLEL + f"if rank == 1: {refuses}\n"

    ran = run(tmp_path, code + "train(nn.parallel.DistributedDataParallel(model), 400)\n", compile=mode, ranks=2)

    assert ran.codes == [0, 0], ran.stderr
    assert [facts["state"] for facts in ran.facts] == ["eager", "eager"]
    assert f"rank 1: {reason}" in ran.facts[0]["reason"] and reason in ran.facts[1]["reason"]
    assert len(ran.lines) == 1 and f"eager: rank 1: {reason}" in ran.lines[0]


@needs_torch
@pytest.mark.parametrize("mode", ["bf16", pytest.param("auto", marks=pytest.mark.long)])
def test_autocast_inside_of_forward_is_the_scripts_own(tmp_path: Path, mode: str) -> None:
    code = (
        "class Own(Net):\n"
        "    def forward(self, x):\n"
        "        with torch.autocast('cpu', dtype=torch.bfloat16):\n"
        "            return super().forward(x)\n"
        "model = Own()\n"
        "train(model, 6)\n"
        "print(model(inputs).dtype)\n"
    )

    ran = run(tmp_path, NET + code, autocast=mode)

    assert ran.stdout == ["torch.bfloat16\n"] and ran.codes == [0], ran.stderr
    assert ran.facts[0]["autocast_state"] == "off"
    assert ran.facts[0]["autocast_reason"] == "the script uses autocast itself"


@needs_torch
def test_autocast_around_the_module_that_comes_later_is_the_scripts_own(tmp_path: Path) -> None:
    """Also one that switches it off."""
    code = (
        "class Shows(Net):\n"
        "    def forward(self, x):\n"
        "        print(torch.is_autocast_enabled('cpu'), end=' ')\n"
        "        return super().forward(x)\n"
        "model = Shows()\n"
        "train(model, 4)\n"
        "with torch.autocast('cpu', dtype=torch.bfloat16, enabled=False):\n"
        "    train(model, 1)\n"
        "with torch.autocast('cpu', dtype=torch.bfloat16):\n"
        "    print(model(inputs).dtype)\n"
        "train(model, 1)\n"
    )

    ran = run(tmp_path, NET + code, autocast="bf16")

    assert ran.stdout == ["False False True True False True torch.bfloat16\nTrue "], ran.stderr


CHANGES = """
import types
import torch
from torch import nn
torch.manual_seed(0)
torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.norm, self.scale = nn.Linear(8, 8), nn.BatchNorm1d(8), 1.0
    def forward(self, x):
        return torch.tanh(self.norm(self.a(x))) * self.scale
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.out = nn.Sequential(Block(), Block()), nn.Linear(8, 4)
    def forward(self, x):
        return self.out(self.body(x))
model = Net()
inputs, targets = torch.randn(16, 8), torch.randint(0, 4, (16,))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train(what):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(inputs).double(), targets)
    loss.backward()
    optimizer.step()
    print(what, loss.item(), *(p.grad.abs().sum().item() for p in model.parameters() if p.grad is not None))
def with_hook(what, handle):
    train(what)
    handle.remove()
    train(f"no-{what}")
def with_forward(what, holder, forward):
    before = vars(holder).get("forward")
    holder.forward = forward if isinstance(holder, type) else types.MethodType(forward, holder)
    train(what)
    if before is None:
        del holder.forward
    else:
        holder.forward = before
    train(f"no-{what}")
def larger(module, inputs, output=None):
    if output is None:
        return (inputs[0] * 1.5,) if isinstance(inputs[0], torch.Tensor) else None
    return output * 1.5 if isinstance(output, torch.Tensor) else None
def steeper(module, given, taken):
    return tuple(None if each is None else each * 1.5 for each in given)
for _ in range(5):
    train("as-it-was")
block, of_all = model.body[0], nn.modules.module
"""
CHANGED = """
block.scale = 2.0; train("attribute")
with_hook("inner-hook", block.register_forward_hook(larger))
with_hook("innermost-pre-hook", block.a.register_forward_pre_hook(larger))
with_hook("hook", model.register_forward_hook(larger))
with_hook("pre-hook", model.register_forward_pre_hook(larger))
with_hook("backward-hook", model.register_full_backward_hook(steeper))
with_hook("inner-backward-hook", block.register_full_backward_hook(steeper))
with_hook("hook-of-all", of_all.register_module_forward_hook(larger))
with_hook("pre-hook-of-all", of_all.register_module_forward_pre_hook(larger))
with_hook("backward-hook-of-all", of_all.register_module_full_backward_hook(steeper))
with_forward("inner-forward", block, lambda self, x: torch.sin(self.a(x)))
with_forward("forward", model, lambda self, x: self.out(torch.sin(self.body(x))))
with_forward("class-forward", Block, lambda self, x: torch.sin(self.norm(self.a(x))))
model.body[0] = Block(); train("replaced")
model.body.append(nn.Tanh()); train("appended")
del model.body[2]; train("removed")
model.body[1].norm.eval(); train("inner-mode")
block.a.weight.requires_grad_(False); model.body[1].a.weight.requires_grad_(False); train("frozen")
model.body[1].a.weight.requires_grad_(True); train("unfrozen")
model.body[1].a.weight = nn.Parameter(torch.ones(8, 8)); train("parameter")
model.body[1].norm.running_mean = torch.full((8,), 3.0); train("buffer")
"""


@needs_torch
def test_a_model_that_the_script_changes_after_it_was_compiled_has_plain_torchs_numbers(tmp_path: Path) -> None:
    code = (
        QUICK
        + CHANGES
        + CHANGED
        + 'inputs = inputs[:12]; targets = targets[:12]; train("batch")\n'
        + 'model.float(); inputs = inputs.float(); train("type")\n'
    )
    eager = run(tmp_path, code)

    ran = run(tmp_path, code, compile="on")

    assert eager.codes == ran.codes == [0], ran.stderr
    assert ran.facts[0]["state"] == "compiled" and ran.facts[0]["recompilations"], ran.stderr
    for expected, line in zip(eager.stdout[0].splitlines(), ran.stdout[0].splitlines(), strict=True):
        what, *numbers = expected.split()
        rel = 1e-9 if what != "type" else 1e-4
        assert line.split()[0] == what
        assert [float(each) for each in line.split()[1:]] == pytest.approx(
            [float(each) for each in numbers], rel=rel
        ), what


REPLACES_AND_FAILS = """
class Breaks(Net):
    def forward(self, x):
        x = nn.functional.gelu(self.norm(self.a(x)))
        torch._dynamo.graph_break()
        return self.out(nn.functional.dropout(self.b(x), 0.5))
model = Breaks()
train(model, 5)
model.norm = nn.BatchNorm1d(32, momentum=0.5)
def _fails(self, graph, inputs):
    if any("modules_out" in node.name for node in graph.graph.nodes):
        raise RuntimeError("no code for this")
    return _quick(self, graph, inputs)
torch._TorchCompileInductorWrapper.__call__ = _fails
print(train(model, 3, inputs=inputs[:12], targets=targets[:12]))
print(model.norm.running_mean.sum().item(), model.norm.num_batches_tracked.item(), torch.rand(1))
"""


@needs_torch
def test_a_pass_that_fails_after_a_module_was_replaced_sets_back_the_state_of_the_new_one(tmp_path: Path) -> None:
    code = DIVIDED + NET + REPLACES_AND_FAILS
    eager = run(tmp_path, code)

    ran = run(tmp_path, code, compile="on")

    assert ran.stdout == eager.stdout, ran.stderr
    assert ran.facts[0]["state"] == "eager" and "no code for this" in ran.facts[0]["reason"]


@needs_torch
def test_all_ranks_that_compile_as_asked_for_say_so_once(tmp_path: Path) -> None:
    # The ranks agree beside the steps, and say so in the step that sees it.
    code = QUICK + NET + PARALLEL + "train(nn.parallel.DistributedDataParallel(model), 300)\n"

    ran = run(tmp_path, code, compile="on", ranks=2)

    assert ran.codes == [0, 0] and [each["state"] for each in ran.facts] == ["compiled", "compiled"], ran.stderr
    (line,) = ran.lines
    assert "compiled Net in" in line and "as asked for" in line


ACCUMULATES = """
import contextlib
class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.out = nn.Linear(32, 32), nn.Linear(32, 10)
    def forward(self, x):
        return self.out(nn.functional.gelu(self.a(x)))
def accumulate(model, steps, wait=contextlib.nullcontext):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        optimizer.zero_grad()
        for part in range(4):
            rows = slice(4 * part, 4 * part + 4)
            with (wait() if part < 3 else contextlib.nullcontext()):
                (nn.functional.cross_entropy(model(inputs[rows]), targets[rows]) / 4).backward()
        optimizer.step()
    return nn.functional.cross_entropy(model(inputs), targets).item()
"""


@needs_torch
def test_a_step_of_accumulated_gradients_is_one_step_of_the_trial(tmp_path: Path) -> None:
    code = QUICK + NET + ACCUMULATES + "print(accumulate(Plain(), 400))\n"
    eager = run(tmp_path, code)

    ran = run(tmp_path, code, compile="auto")

    assert float(ran.stdout[0]) == pytest.approx(float(eager.stdout[0]), rel=1e-4), ran.stderr
    (facts,) = ran.facts
    assert facts["steps"] == 400 and facts["modules"] == ["Plain"]
    assert facts["trial"]["pairs"] >= 6 and facts["trial"]["kept"] is (facts["state"] == "compiled")
    assert len(ran.lines) == 1 and not facts["recompilations"]


@needs_torch
def test_ranks_that_accumulate_gradients_without_sync_decide_the_same(tmp_path: Path) -> None:
    code = (
        QUICK
        + NET
        + PARALLEL
        + ACCUMULATES
        + (
            "inputs = torch.roll(inputs, rank, 1)\n"
            "torch.manual_seed(0); model = nn.parallel.DistributedDataParallel(Plain())\n"
            "accumulate(model, 400, model.no_sync)\n"
            "print(sum(each.sum().item() for each in model.parameters()))\n"
        )
    )
    eager = run(tmp_path, code, ranks=2)

    ran = run(tmp_path, code, compile="auto", ranks=2)

    assert ran.codes == [0, 0] and ran.stdout[0] == ran.stdout[1], ran.stderr
    assert float(ran.stdout[0]) == pytest.approx(float(eager.stdout[0]), rel=1e-3)
    first, second = ran.facts
    assert first["steps"] == second["steps"] == 400 and first["state"] == second["state"]
    assert first["trial"] == {**second["trial"], "cost_s": first["trial"]["cost_s"]} and first["trial"]["pairs"] >= 6


LIGHTNING = """
import warnings; warnings.simplefilter("ignore")
import lightning
class Lit(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = Net()
    def training_step(self, batch, number):
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(inputs, targets), batch_size=8)
trainer = lightning.Trainer(max_steps=6, accelerator="cpu", logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False, accumulate_grad_batches=1)
trainer.fit(Lit(), data)
"""


@needs_torch
@pytest.mark.transformers
@pytest.mark.skipif(not TRANSFORMERS.exists(), reason="no bed of transformers: scripts/beds/transformers makes it")
def test_what_a_lightning_module_trains_is_compiled_unedited(tmp_path: Path) -> None:
    ran = run(tmp_path, QUICK + NET + LIGHTNING, compile="on", python=TRANSFORMERS)

    assert ran.codes == [0], ran.stderr
    (facts,) = ran.facts
    assert (facts["state"], facts["modules"], facts["steps"]) == ("compiled", ["Net"], 6)
    assert facts["graphs"] == 1 and facts["graph_breaks"] == 0


CHECKPOINTS = """
from torch.utils.checkpoint import checkpoint
class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.out = nn.Linear(32, 32), nn.Linear(32, 10)
    def forward(self, x):
        return self.out(checkpoint(lambda each: nn.functional.gelu(self.a(each)), x, use_reentrant=REENTRANT))
inputs.requires_grad_()
print(train(Plain(), 400)[-1])
"""


@needs_torch
@pytest.mark.parametrize("reentrant", [False, pytest.param(True, marks=pytest.mark.long)])
def test_what_activation_checkpointing_computes_again_is_no_module_of_its_own(tmp_path: Path, reentrant: bool) -> None:
    code = DIVIDED + NET + CHECKPOINTS.replace("REENTRANT", str(reentrant))
    eager = run(tmp_path, code)

    ran = run(tmp_path, code, compile="auto")

    assert float(ran.stdout[0]) == pytest.approx(float(eager.stdout[0]), rel=1e-4), ran.stderr
    (facts,) = ran.facts
    assert facts["modules"] == ["Plain"] and facts["trial"]["pairs"] >= 6 and len(ran.lines) == 1


OUTER_CHECKPOINTS = """
from torch.utils.checkpoint import checkpoint
class Part(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(32, 32), nn.Linear(32, 32)
    def forward(self, x):
        return self.b(nn.functional.dropout(nn.functional.gelu(self.a(x)), DROPOUT))
first, part, out = nn.Linear(32, 32), Part(), nn.Linear(32, 10)
optimizer = torch.optim.SGD([*first.parameters(), *part.parameters(), *out.parameters()], lr=0.1)
for step in range(8):
    optimizer.zero_grad()
    found = out(checkpoint(part, first(inputs), use_reentrant=REENTRANT))
    loss = nn.functional.cross_entropy(found, targets); loss.backward(); optimizer.step()
print(loss.item())
"""


@needs_torch
@pytest.mark.parametrize(("reentrant", "dropout"), [(False, 0.0), (True, 0.5)])
def test_a_module_inside_activation_checkpointing_computes_the_same_again(
    tmp_path: Path, reentrant: bool, dropout: float
) -> None:
    """Reentrant: forward without gradients, so eagerly, and again with the same dropout. The other way ends the second
    pass by an exception of its own, which is no failure to compile."""
    code = DIVIDED + NET + OUTER_CHECKPOINTS.replace("REENTRANT", str(reentrant)).replace("DROPOUT", str(dropout))
    eager = run(tmp_path, code)

    ran = run(tmp_path, code, compile="on")

    assert ran.codes == [0], ran.stderr
    assert float(ran.stdout[0]) == pytest.approx(float(eager.stdout[0]), rel=1e-4)
    (facts,) = ran.facts
    assert facts["state"] == "compiled" and ("Part" in facts["modules"]) is not reentrant


STEPS_BY_GROUP = """
model = Net()
optimizer = torch.optim.SGD([{"params": [each]} for each in model.parameters()], lr=0.1)
for step in range(220):  # More than all pairs of a trial: it decides, whatever else the machine does.
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(inputs), targets).backward()
    groups = optimizer.param_groups
    for group in groups:
        optimizer.param_groups = [group]
        optimizer.step()
    optimizer.param_groups = groups
"""
LABELS_ITSELF = """
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(400):
    with torch.no_grad():
        labels = model(inputs).argmax(1)
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(inputs), labels).backward()
    optimizer.step()
"""


@needs_torch
@pytest.mark.parametrize(
    ("loop", "least", "most"),
    [(STEPS_BY_GROUP, 220, 220 * 8), (LABELS_ITSELF, 390, 400)],  # Once it is decided, the step of each group counts.
)
def test_a_trial_decides_where_an_optimizer_steps_by_group_or_the_model_labels_its_data(
    tmp_path: Path, loop: str, least: int, most: int
) -> None:
    ran = run(tmp_path, QUICK + NET + loop, compile="auto")

    (facts,) = ran.facts
    assert facts["trial"]["pairs"] >= 6, ran.lines
    assert least <= facts["steps"] <= most


@needs_torch
def test_a_copy_of_a_compiled_module_with_a_state_of_its_own_runs_its_own_code(tmp_path: Path) -> None:
    code = (
        "import copy\n"
        "class Whole(Net):\n"
        "    def __getstate__(self):\n"
        "        return self.__dict__\n"
        "model = Whole()\n"
        "train(model, 4)\n"
        "copied = copy.deepcopy(model)\n"
        "nn.init.zeros_(copied.out.weight); nn.init.zeros_(copied.out.bias)\n"
        "print(copied(inputs).abs().sum().item())\n"
    )

    ran = run(tmp_path, QUICK + NET + code, compile="on")

    assert ran.stdout == ["0.0\n"], ran.stderr


PENALTY = """
class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.out = nn.Linear(32, 32), nn.Linear(32, 10)
    def forward(self, x):
        return self.out(nn.functional.gelu(self.a(x)))
model = Plain()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(STEPS):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(inputs), targets)
    if step >= LATE:
        x = inputs.clone().requires_grad_()
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        loss = loss + slope.pow(2).mean()
    loss.backward(); optimizer.step()
print(loss.item())
"""


@needs_torch
@pytest.mark.parametrize(
    ("mode", "late"),
    [("on", 9), ("auto", 9), pytest.param("auto", 398, marks=pytest.mark.long)],
    ids=["on", "trial", "decided"],
)
def test_a_gradient_penalty_that_begins_late_ends_compiling_and_trains_on(tmp_path: Path, mode: str, late: int) -> None:
    code = DIVIDED + NET + PENALTY.replace("STEPS", "400").replace("LATE", str(late))
    eager = run(tmp_path, code)

    ran = run(tmp_path, code, compile=mode)

    assert ran.codes == [0] and float(ran.stdout[0]) == pytest.approx(float(eager.stdout[0]), rel=1e-4), ran.stderr
    (facts,) = ran.facts
    assert facts["state"] == "eager" and facts["steps"] == 400
    if late == 9:
        assert "gradients of gradients" in facts["reason"] and "gradients of gradients" in ran.lines[-1]
