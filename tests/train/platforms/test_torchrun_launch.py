"""Command lines of torchrun, and the launches that they are."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from toolkit.errors import ContractError
from toolkit.job.machine import Machine
from toolkit.train.platforms.torchrun_launch import Meeting, TorchrunLaunch, read_launch, without_program

FOLDER = Path("/code/project")
MACHINE = Machine(cpus=4, cpus_total=8, memory_bytes=1 << 30)
C10D = "--nnodes 2 --rdzv-backend c10d --rdzv-endpoint"


def launch_of(line: str, environ: Mapping[str, str] = {}) -> TorchrunLaunch:
    return read_launch(without_program(line.split()), environ, FOLDER)


@pytest.mark.parametrize(
    ("line", "hosts", "node_rank", "address", "port"),
    [
        ("train.py", 1, 0, "127.0.0.1", 0),
        ("--standalone --master-port 7 train.py", 1, 0, "localhost", 0),
        ("--nnodes 1 --rdzv-backend c10d --rdzv-endpoint localhost:6000 train.py", 1, 0, "localhost", 0),
        ("--master_port 1234 train.py", 1, 0, "127.0.0.1", 1234),
        ("--nnodes 2 --node-rank 1 --master-addr 10.0.0.1 train.py", 2, 1, "10.0.0.1", 29500),
        ("--nnodes 2:2 --node-rank 1 --master-addr [fd00::1] --master-port 9 train.py", 2, 1, "fd00::1", 9),
        ("--nnodes 2 --node-rank 1 --rdzv-endpoint [fd00::1]:9 train.py", 2, 1, "fd00::1", 9),
        (f"{C10D} head:29500 train.py", 2, None, "head", 29500),
        (f"{C10D} head train.py", 2, None, "head", 29400),
    ],
)
def test_where_hosts_and_ranks_meet(line: str, hosts: int, node_rank: int | None, address: str, port: int) -> None:
    launch = launch_of(line)

    assert (launch.hosts, launch.node_rank, launch.address, launch.port) == (hosts, node_rank, address, port)


def test_hosts_of_c10d_meet_at_the_endpoint() -> None:
    launch = launch_of(f"{C10D} head:5 --node-rank 1 --rdzv-conf is_host=0,join_timeout=60,close_timeout=3 train.py")

    assert launch.meeting == Meeting(host="head", port=5, is_host=False)
    assert (launch.wish, launch.join_s) == (1, 60.0)


@pytest.mark.parametrize(
    ("line", "kind", "entry", "arguments"),
    [
        ("train.py --lr 1", "program", "train.py", ("--lr", "1")),
        ("-m pkg.train -m x", "module", "pkg.train", ("-m", "x")),
        ("--no-python python -u a.py", "command", "python", ("-u", "a.py")),
        ("--run-path --no-python /a/b.py", "program", "/a/b.py", ()),
        ("-- train.py", "program", "train.py", ()),
    ],
)
def test_scripts(line: str, kind: str, entry: str, arguments: tuple[str, ...]) -> None:
    launch = launch_of(line)

    assert (launch.script.kind, launch.script.entry, launch.script.folder) == (kind, entry, FOLDER)
    assert launch.arguments == arguments


@pytest.mark.parametrize(
    ("line", "module", "python", "options"),
    [
        ("torchrun train.py", "run", "", ()),
        ("/opt/bin/torchrun --role trainer train.py", "run", "", ("--role", "trainer")),
        ("python3 -m torch.distributed.run --rdzv-id 7 train.py", "run", "python3", ("--rdzv_id", "7")),
        ("/v/bin/python -u -W ignore -m torch.distributed.launch t.py", "launch", "/v/bin/python", ()),
        ("python -m torch.distributed.launch --use_env t.py", "launch", "python", ("--use_env",)),
        (
            "--numa-binding node --virtual-local-rank t.py",
            "run",
            "",
            ("--numa_binding", "node", "--virtual_local_rank"),
        ),
    ],
)
def test_whole_lines_and_what_torch_gets_of_them(line: str, module: str, python: str, options: tuple[str, ...]) -> None:
    assert without_program(line.split()).python == python
    launch = launch_of(line)
    assert (launch.module, launch.options) == (f"torch.distributed.{module}", options)


@pytest.mark.parametrize(
    ("line", "processes"),
    [("t.py", 1), ("--nproc-per-node 3 t.py", 3), ("--nproc-per-node cpu t.py", 8), ("--nproc-per-node auto t.py", 8)],
)
def test_ranks_of_a_host_without_gpus(line: str, processes: int) -> None:
    assert launch_of(line).count_processes(MACHINE) == processes


def test_ranks_of_a_host_with_gpus() -> None:
    machine = Machine(cpus=4, cpus_total=8, memory_bytes=1, accelerator="nvidia", accelerators=2)
    assert [launch_of(f"--nproc-per-node {word} t.py").count_processes(machine) for word in ("gpu", "auto", "cpu")] == [
        2,
        2,
        8,
    ]
    with pytest.raises(ContractError, match="expected GPUs, found none"):
        launch_of("--nproc-per-node gpu t.py").count_processes(MACHINE)


@pytest.mark.parametrize(
    ("options", "in_files", "on_console"),
    [
        ("", (0, 0, 0), (3, 3, 3)),
        ("--redirects 3", (3, 3, 3), (0, 0, 0)),
        ("--redirects 1", (1, 1, 1), (2, 2, 2)),
        ("--tee 3", (3, 3, 3), (3, 3, 3)),
        ("--redirects 3 --tee 1", (3, 3, 3), (1, 1, 1)),
        ("-r 0:1,2:3", (1, 0, 3), (2, 3, 0)),
        ("--local-ranks-filter 1 -t 0:3", (3, 0, 0), (0, 3, 0)),
    ],
)
def test_where_output_goes(options: str, in_files: tuple[int, ...], on_console: tuple[int, ...]) -> None:
    """As torch.distributed.elastic.multiprocessing.api.DefaultLogsSpecs.reify of 2.13 has it."""
    output = launch_of(f"{options} t.py").rank_output(3, 0, FOLDER)

    assert (output.in_files, output.on_console) == (in_files, on_console)


def test_variables_set_options_and_are_named_to_be_dropped() -> None:
    launch = launch_of("t.py", {"PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_MASTER_ADDR": "head", "PET_X": "1"})

    assert (launch.hosts, launch.node_rank, launch.address) == (2, 1, "head")
    assert sorted(launch.variables) == ["PET_MASTER_ADDR", "PET_NNODES", "PET_NODE_RANK"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "expected options and a script, found nothing"),
        ("python train.py", "expected python -m torch.distributed.run"),
        ("python -m pytest", "expected python -m torch.distributed.run"),
        ("--nnodes 1:4 t.py", "--nnodes 1:4: expected one number"),
        ("--nnodes 0 t.py", "--nnodes: expected a number of hosts"),
        ("--nnodes two t.py", "--nnodes: expected a number of hosts"),
        ("--nnodes 2 --node-rank 2 t.py", "--node-rank: expected 0 to 1 for 2 hosts, found 2"),
        ("--nnodes 2 --master-port 0 t.py", "expected a port"),
        ("--nproc-per-node many t.py", "--nproc-per-node: expected a number, auto, cpu, gpu or xpu"),
        ("--nproc-per-node 0 t.py", "--nproc-per-node"),
        ("--rdzv-backend etcd-v2 t.py", "--rdzv-backend: expected c10d or static, found 'etcd-v2'"),
        ("--rdzv-backend c10 t.py", "Did you mean c10d"),
        ("--nnodes 2 --rdzv-backend c10d t.py", "--rdzv-endpoint: expected HOST:PORT"),
        (f"{C10D} [fe80::1%eth0]:29500 t.py", "whose scope ('eth0') is an interface of this host"),
        ("--rdzv-endpoint head:port t.py", "--rdzv-endpoint: expected HOST:PORT, found 'head:port'"),
        ("--rdzv-conf timeout t.py", "--rdzv-conf: expected KEY=VALUE"),
        ("--rdzv-conf join_timeout=soon t.py", "join_timeout: expected seconds"),
        ("--rdzv-conf is_host=maybe t.py", "is_host: expected 1 or 0"),
        ("--standalone --nnodes 2 t.py", "--standalone: expected one host"),
        ("--tee 4 t.py", "--tee: expected 0, 1, 2, 3"),
        ("--redirects 0:x t.py", "--redirects: expected"),
        ("--local-ranks-filter a t.py", "--local-ranks-filter: expected numbers"),
        ("--logs-specs mine t.py", "--logs-specs mine: expected no class"),
        ("--max-restarts -1 t.py", "--max-restarts: expected 0"),
        ("--shutdown-timeout -1 t.py", "--shutdown-timeout: expected seconds"),
        ("--no-python -m t", "--no-python and --module"),
        ("python -m torch.distributed.launch --no-python t", "expected --use-env"),
        ("--nproc_per_nodes 2 t.py", "Did you mean --nproc_per_node"),
    ],
)
def test_what_cannot_be_honoured_has_a_clear_end(line: str, message: str) -> None:
    with pytest.raises(ContractError) as refused:
        launch_of(line)

    assert message in str(refused.value)
    assert refused.value.exit_code == 78
