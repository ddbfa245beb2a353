"""Ranks that wait for others are known by their stacks as torch, our own backend and other libraries write them."""

import pytest

from toolkit.job.stuck import Activity
from toolkit.train.supervise.frames import Frame, called, kind, parse_frames, users

SITE = "/venv/lib/python3.11/site-packages/"
C10D = f"{SITE}torch/distributed/distributed_c10d.py:3252 all_reduce"
OURS = "/opt/ml/code/train.py"
STD = "/usr/lib/python3.11/"


def frames(*places: str) -> list[Frame]:
    parsed = []
    for place in places:
        location, _, function = place.partition(" ")
        file, _, line = location.rpartition(":")
        parsed.append(Frame(file=file, line=int(line), function=function))
    return parsed


@pytest.mark.parametrize(
    ("stack", "source", "expected"),
    [
        ((C10D, f"{SITE}torch/distributed/c10d_logger.py:83 wrapper", f"{OURS}:8 step"), "", "waits"),
        ((f"{SITE}torch/distributed/distributed_c10d.py:5435 monitored_barrier", f"{OURS}:12 step"), "", "waits"),
        (
            (
                f"{SITE}torch/_ops.py:1279 __call__",
                f"{SITE}torch/distributed/_functional_collectives.py:142 wait_tensor",
                f"{OURS}:16 step",
            ),
            "",
            "waits",
        ),
        (
            (f"{SITE}torch/autograd/graph.py:979 _engine_run_backward", f"{SITE}torch/_tensor.py:623 backward"),
            "",
            "waits",
        ),
        ((f"{SITE}torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py:400 wait_for_unshard",), "", "waits"),
        ((f"{SITE}torch/distributed/rendezvous.py:220 _create_c10d_store", f"{OURS}:3 main"), "", "waits"),
        ((f"{SITE}torch/futures/__init__.py:80 wait", C10D, f"{OURS}:8 step"), "", "waits"),
        (
            (
                f"{STD}threading.py:324 wait",
                f"{STD}threading.py:622 wait",
                f"{SITE}toolkit/rank/dataparallel/reduce/work.py:31 wait",
                C10D,
                f"{OURS}:8 step",
            ),
            "",
            "waits",
        ),
        ((f"{SITE}toolkit/rank/dataparallel/reduce/shared_memory.py:157 _wait", C10D), "", "waits"),
        (("/src/toolkit/rank/dataparallel/reduce/tcp.py:145 _wait", C10D), "", "waits"),
        (("/src/toolkit/rank/dataparallel/tf/transport.py:90 allreduce", f"{OURS}:8 step"), "", "waits"),
        (("/src/toolkit/rank/modelparallel/messenger.py:140 receive", f"{OURS}:8 step"), "", "waits"),
        (("/src/toolkit/rank/modelparallel/torch/server.py:90 run", f"{OURS}:8 step"), "", "unclear"),
        ((f"{SITE}horovod/torch/mpi_ops.py:1300 synchronize", f"{OURS}:8 step"), "", "waits"),
        ((f"{SITE}deepspeed/comm/torch.py:100 wait", f"{OURS}:8 step"), "", "waits"),
        # Calls into C and C++ have no frame: the line of the call is read.
        ((f"{OURS}:10 step",), "    work.wait()\n", "unclear"),
        ((f"{OURS}:10 step",), "    store.get('key')\n", "unclear"),
        ((f"{OURS}:10 step",), "    print(loss.item())\n", "unclear"),
        ((f"{OURS}:10 step",), "    comm.Barrier()\n", "unclear"),
        ((f"{OURS}:10 step",), "    MPI.COMM_WORLD.Allreduce(mine, all)\n", "unclear"),
        ((f"{OURS}:10 step",), "    request.Wait()\n", "unclear"),
        ((f"{SITE}torch/cuda/__init__.py:1100 synchronize", f"{OURS}:10 step"), "", "unclear"),
        ((f"{SITE}torch/cuda/streams.py:230 synchronize", f"{OURS}:10 step"), "", "unclear"),
        ((f"{SITE}torch_xla/core/xla_model.py:1050 mark_step", f"{OURS}:10 step"), "", "unclear"),
        ((), "", "unclear"),
        # These wait for no rank.
        ((f"{OURS}:10 step",), "    time.sleep(600)\n", "works"),
        ((f"{OURS}:10 step",), "", "works"),
        ((f"{OURS}:10 step", f"{SITE}torch/nn/parallel/distributed.py:1600 forward"), "", "works"),
        ((f"{STD}threading.py:324 wait", f"{OURS}:10 load"), "    ready.wait()\n", "works"),
        (
            (
                f"{STD}selectors.py:415 select",
                f"{STD}multiprocessing/connection.py:947 wait",
                f"{SITE}torch/utils/data/dataloader.py:1295 _try_get_data",
                f"{OURS}:10 step",
            ),
            "",
            "works",
        ),
        ((f"{STD}ssl.py:1166 read", f"{SITE}urllib3/response.py:560 read", f"{OURS}:10 load"), "", "works"),
        ((f"{SITE}PIL/Image.py:300 load", f"{OURS}:10 load", C10D), "", "works"),
        ((f"{SITE}torch/nn/modules/linear.py:130 forward", f"{SITE}torch/nn/parallel/distributed.py:1 f"), "", "works"),
        ((f"{SITE}torch/distributed/checkpoint/filesystem.py:300 write_data", f"{OURS}:10 save"), "", "works"),
    ],
)
def test_a_rank_waits_for_others_works_or_cannot_be_told(
    stack: tuple[str, ...], source: str, expected: Activity
) -> None:
    assert kind(frames(*stack), source) == expected


def test_of_faulthandlers_threads_the_main_one_is_the_last() -> None:
    text = (
        "Thread 0x00007f1a (most recent call first):\n"
        f'  File "{STD}threading.py", line 324 in wait\n'
        "\n"
        "Current thread 0x00007f1b (most recent call first):\n"
        f'  File "{SITE}torch/distributed/distributed_c10d.py", line 3252 in all_reduce\n'
        f'  File "{OURS}", line 8 in step\n'
        f'  File "{OURS}", line 24 in <module>\n'
    )

    parsed = parse_frames(text)

    assert parsed == frames(C10D, f"{OURS}:8 step", f"{OURS}:24 <module>")
    assert users(parsed) == parsed[1]


def test_where_faulthandler_stopped_before_the_main_thread_nothing_is_told() -> None:
    thread = f'Thread 0x00007f1a (most recent call first):\n  File "{OURS}", line 8 in work\n\n'

    assert parse_frames(thread * 100 + "...\n") == []


def test_a_main_thread_whose_stack_was_cut_is_still_the_main_one() -> None:
    frame = f'  File "{OURS}", line 8 in deeper\n'

    parsed = parse_frames("Thread 0x00007f1a (most recent call first):\n" + frame * 100 + "  ...\n")

    assert len(parsed) == 100


@pytest.mark.parametrize("name", [': "MainThread"', ""], ids=["named", "threading was not imported"])
def test_py_spys_main_thread_has_a_name_or_the_number_of_its_process(name: str) -> None:
    text = (
        "Process 71: python train.py\nPython v3.11.2 (/usr/bin/python3.11)\n\n"
        f"Thread 71 (idle){name}\n"
        f"    all_reduce ({SITE}torch/distributed/distributed_c10d.py:3252)\n"
        f"    step ({OURS}:8)\n"
        'Thread 80 (idle): "Thread-1"\n'
        f"    wait ({STD}threading.py:324)\n"
    )

    parsed = parse_frames(text)

    assert [(frame.function, frame.line) for frame in parsed] == [("all_reduce", 3252), ("step", 8)]
    assert kind(parsed, "") == "waits"


def test_code_of_the_toolkit_in_a_rank_is_not_the_users() -> None:
    stack = frames("/src/toolkit/rank/compiler/torch/slot.py:80 __call__", f"{OURS}:8 step")

    user_frame = users(stack)

    assert user_frame is not None
    assert user_frame.file == OURS


@pytest.mark.parametrize(
    ("functions", "call"),
    [
        (("all_reduce", "wrapper"), "all_reduce"),
        (("_engine_run_backward", "backward", "_call"), "backward"),
        (("synchronize", "Optimizer.step", "wrapper"), "step"),
        (("_wait",), ""),
        ((), ""),
    ],
)
def test_the_call_in_which_a_rank_waits_is_what_the_users_line_calls(functions: tuple[str, ...], call: str) -> None:
    stack = [Frame(file="/x/site-packages/torch/distributed/c.py", line=1, function=name) for name in functions]
    stack += [Frame(file="/opt/ml/code/train.py", line=7, function="step")]

    assert called(stack) == call
