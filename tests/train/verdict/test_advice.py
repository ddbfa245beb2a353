import pytest

from toolkit.train.verdict.advice import ADVICE, INSTALL, advise_own_module, find_advice
from toolkit.train.verdict.collateral import LOST_PEER, LOST_RANK, REPEATED, is_collateral


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB", "batch size"),
        ("RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error.", "--shm-size"),
        ("script was killed by SIGBUS (signal 7)", "/dev/shm"),
        ("OSError: [Errno 28] No space left on device", "disk is full"),
        (
            "RuntimeError: unable to open shared memory object </torch_12_3> in rw mode: No space left on device",
            "shm",
        ),
        ("RuntimeError: unable to write to file </torch_12_3>: No space left on device (28)", "--shm-size"),
        ("RuntimeError: unable to allocate shared memory(shm) for file </torch_1>: Resource temporarily", "--shm-size"),
        ("OSError: [Errno 28] No space left on device: '/dev/shm/psm_1234'", "--shm-size"),
        ("OSError: [Errno 28] No space left on device\n    sl = _multiprocessing.SemLock(kind, value)", "--shm-size"),
        ("OSError: [Errno 28] No space left on device\n/p/multiprocessing/synchronize.py:57 in __init__", "--shm-size"),
        ("RuntimeError: CUDA error: invalid device ordinal", "LOCAL_RANK"),
        ("torch.AcceleratorError: CUDA error: device-side assert triggered", "vocabulary"),
        ("DistNetworkError: port: 7777, code: -98, name: EADDRINUSE", "MASTER_PORT"),
        ("ModuleNotFoundError: No module named 'einops'", "requirements.txt"),
        ("ModuleNotFoundError: No module named 'smdistributed'", "distribution"),
        ("ModuleNotFoundError: No module named 'smdistributed.modelparallel'", "must ask for it"),
        ("ModuleNotFoundError: No module named 'smdistributed.modelparallel.torch.moe'", "has no such module"),
        ("This environment is externally managed: To install Python packages system-wide, try apt", "PEP 668"),
        ("NVRM: Xid (PCI:0000:10:1c): 79, GPU has fallen off the bus", "exclude this machine"),
        ("RuntimeError: The server socket has failed to listen. Address already in use", "MASTER_PORT"),
        ('Segmentation fault\n  File "/v/horovod/common/basics.py", line 105 in init', "without MPI"),
        ("TypeError: set_autocast_dtype(): argument 'dtype' (position 2) must be torch.dtype, not str", "bfloat16"),
        ("SyntaxError: invalid character '“' (U+201C)", "quotes"),
        ("SyntaxError: invalid character '’' (U+2019)", "quotes"),
        ("train.py: error: unrecognized arguments: --lr 3", "TOOLKIT_ARGUMENT_STYLE"),
        ("train.py: error: unrecognized arguments: --mp_parameters partitions=2", "to the script's parser"),
        ("train.py: error: unrecognized arguments: True", "TOOLKIT_ARGUMENT_STYLE=flags"),
        ("train.py: error: unrecognized arguments: False --lr 3", "TOOLKIT_ARGUMENT_STYLE=flags"),
        ("Error: Got unexpected extra argument (True)", "TOOLKIT_ARGUMENT_STYLE=flags"),
        ("train.py: error: argument --layers: invalid int value: '[1, 2]'", "TOOLKIT_ARGUMENT_STYLE=flags"),
        ("train.py: error: argument --seed: invalid int value: ''", "TOOLKIT_ARGUMENT_STYLE=flags"),
        ("train.py: error: argument --seed: invalid int value: 'x'", ""),
        ("ValueError: too few labels", ""),
        ("ValueError: log line 7: address already in use", ""),
        ("AssertionError: 'no space left on device' != 'ok'", ""),
        ("KeyError: 'CUDA out of memory'", ""),
        ("AssertionError: \nexpected: No module named 'x'", ""),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'too many open files.txt'", ""),
        ("json.decoder.JSONDecodeError: EADDRINUSE: line 1", ""),
        ("pydantic_core._pydantic_core.ValidationError: 1 error\n  bus error in dataloader", ""),
        ("TypeError: unsupported operand for 'Segmentation fault' horovod/common/basics.py", ""),
        ("AssertionError: \nFound no NVIDIA driver on your system.", "--gpus"),
        ("OSError: [Errno 98] Address already in use", "MASTER_PORT"),
        ("RuntimeError: Failed to import transformers.x because of: No module named 'y'", "requirements.txt"),
        ("jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: CUDA out of memory", "batch size"),
        ("Address already in use", "MASTER_PORT"),
    ],
)
def test_known_causes_get_one_line_of_advice(text: str, words: str) -> None:
    assert words in find_advice(text)
    assert bool(words) == bool(find_advice(text))


def test_every_row_can_be_found_and_fits_a_line() -> None:
    for words, text in ADVICE:
        assert all(word == word.lower() for word in words)
        assert find_advice(" ".join(words))
        assert len(text) <= 120


HANDLED = (
    "ModuleNotFoundError: No module named 'triton'",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB",
    "OSError: [Errno 98] Address already in use",
)


@pytest.mark.parametrize("handled", HANDLED)
def test_advice_is_for_the_error_and_what_it_was_raised_from_and_not_for_what_was_handled(handled: str) -> None:
    assert (
        find_advice("ValueError: bad batch", handled=(handled,)) == find_advice(f"ValueError: found {handled!r}") == ""
    )
    assert find_advice("ValueError: bad batch", caused_by=("KeyError: 'x'", handled)) == find_advice(handled) != ""


@pytest.mark.parametrize(
    "handled", ["OSError: [Errno 28] No space left on device", "OSError: [Errno 24] Too many open files"]
)
def test_what_lasts_is_told_also_where_it_was_handled(handled: str) -> None:
    error = "RuntimeError: [enforce fail at inline_container.cc:664] . unexpected pos 64 vs 0"

    assert find_advice(error, handled=(handled,)) == find_advice(handled) != ""
    assert find_advice("torch.OutOfMemoryError: CUDA out of memory", handled=(handled,)) != find_advice(handled)


def test_a_module_of_the_users_own_code_is_not_to_be_installed() -> None:
    locations = {"pkg": "/opt/ml/code/src/pkg"}

    def path_of(name: str) -> str:
        return locations.get(name, "")

    assert "/opt/ml/code/src on Python's path" in advise_own_module(
        "ModuleNotFoundError: No module named 'pkg'", path_of
    )
    assert "has no data.load" in advise_own_module("ModuleNotFoundError: No module named 'pkg.data.load'", path_of)
    assert "on Python's path" in advise_own_module("/usr/bin/python: No module named pkg", path_of)
    assert advise_own_module("ModuleNotFoundError: No module named 'einops'", path_of) == ""
    assert advise_own_module("ValueError: bad batch", path_of) == ""
    assert advise_own_module("AssertionError: No module named 'pkg' in the log", path_of) == ""
    assert find_advice("ModuleNotFoundError: No module named 'pkg'") == INSTALL


@pytest.mark.parametrize(
    "text",
    [
        "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:1",
        "torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error",
        "[rank1]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3, OpType=ALLREDUCE)",
        "torch.distributed.DistNetworkError: failed to recv, got 0 bytes",
        "horovod.common.exceptions.HorovodInternalError: Broken pipe",
        "UnknownError: {{function_node __wrapped__HorovodAllreduce}} Horovod has been shut down. This was caused by",
        "BrokenPipeError: [Errno 32] Broken pipe",
        "PeerLost: Connection closed by peer: rank 1 (partition 1, host algo-2) ended or left",
        "RemoteStepError: the step failed on rank 1: OutOfMemoryError: CUDA error: out of memory",
    ],
)
def test_the_echo_of_another_ranks_end_is_known(text: str) -> None:
    assert is_collateral(text)


@pytest.mark.parametrize(
    "text",
    [
        "ValueError: bad batch",
        "CUDA out of memory",
        "KeyError: 'loss'",
        "",
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address."
        " port: 25463, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address."
        " port: 80, useIpv6: false, code: -13, name: EACCES, message: permission denied",
        "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/device.cc:80] bind: Address already in use",
    ],
)
def test_a_cause_of_its_own_is_no_echo(text: str) -> None:
    assert not is_collateral(text)


def test_every_row_of_echoes_is_in_lower_case() -> None:
    assert all(words == words.lower() for words, _ in (*LOST_RANK, *LOST_PEER, *REPEATED))
