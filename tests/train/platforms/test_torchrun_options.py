"""The table of torchrun's options, against torch's own parser."""

import argparse
import contextlib
import io
from collections.abc import Mapping
from typing import Any

import pytest

from toolkit.errors import ContractError
from toolkit.train.platforms.torchrun_options import OPTIONS, USE_ENV, build_parser, parse_line

LINES = (
    "train.py",
    "--standalone --nproc_per_node=8 train.py --lr 0.1 -- --nnodes 3",
    "--nnodes 1:4 --nproc-per-node gpu --rdzv-id=7 --rdzv-backend c10d --rdzv-endpoint host:29400 -m a.b c",
    "--nproc_per 2 --master_p 1 train.py --tee",
    "-r 3 -t 0:1,1:2 --local-ranks-filter 0,1 --duplicate-stdout-filters a,b,,c --log_dir d --no-python ./run",
    "--shutdown-timeout 5 --virtual-local-rank --numa-binding node --role trainer --max-restarts=3 --run-path t.py",
    "-- train.py --help",
)
VARIABLES: tuple[Mapping[str, str], ...] = (
    {},
    {"PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_STANDALONE": "0", "PET_MODULE": "1", "PET_NUMA_BINDING": "node"},
    {"PET_DUPLICATE_STDERR_FILTERS": "x,y", "PET_MAX_RESTARTS": "4", "PET_MONITOR_INTERVAL": "2.5", "PET_TEE": ""},
)


@pytest.fixture
def torch_parser() -> Any:
    pytest.importorskip("torch")
    from torch.distributed import run

    return run.get_args_parser


def form_of(action: argparse.Action) -> tuple[object, ...]:
    """Return all of an option that decides what it takes; torch's flags are of a class of its own."""
    is_flag = action.nargs == 0
    kind = None if is_flag or action.type in (None, str) else getattr(action.type, "__name__", action.type)
    choices = None if action.choices is None else tuple(action.choices)
    return action.option_strings, action.dest, action.default, kind, choices, is_flag, action.nargs


@pytest.mark.torch
def test_the_table_is_that_of_torchs_parser(torch_parser: Any) -> None:
    theirs = torch_parser()._actions

    ours = build_parser({})._actions

    assert [form_of(action) for action in ours] == [form_of(action) for action in theirs]
    by_variable = [type(action).__name__ in ("env", "check_env") for action in theirs if action.option_strings][1:]
    assert [option.by_variable for option in OPTIONS] == by_variable


@pytest.mark.torch
@pytest.mark.parametrize("variables", VARIABLES)
@pytest.mark.parametrize("line", LINES)
def test_a_line_means_what_torchs_parser_says(
    line: str, variables: Mapping[str, str], torch_parser: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    theirs = torch_parser().parse_args(line.split())

    ours = parse_line(line.split(), variables)

    assert vars(ours) == vars(theirs)


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")
def test_torch_distributed_launch_knows_one_option_more() -> None:
    launch = pytest.importorskip("torch.distributed.launch")
    words = ["--use_env", "--nproc_per_node=2", "train.py"]

    assert vars(parse_line(words, {}, launch=True)) == vars(launch.parse_args(words))
    assert [USE_ENV.names] == [("--use-env", "--use_env")]


@pytest.mark.torch
@pytest.mark.parametrize(
    "line", ["--nproc 2", "--foo train.py", "--max-restarts x train.py", "--start-method no t.py", ""]
)
def test_a_line_that_torch_refuses_is_refused(line: str, torch_parser: Any) -> None:
    with pytest.raises(SystemExit), contextlib.redirect_stderr(io.StringIO()):
        torch_parser().parse_args(line.split())

    with pytest.raises(ContractError, match="toolkit torchrun"):
        parse_line(line.split(), {})


def test_the_variable_of_a_flag_is_a_number() -> None:
    with pytest.raises(ContractError, match=r"PET_STANDALONE: expected 0 or 1, found 'yes'"):
        parse_line(["train.py"], {"PET_STANDALONE": "yes"})
