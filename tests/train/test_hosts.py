"""Several hosts that wait for each other, and those that wait in vain (checklist 40, 41, 51, 54).

One host of each job alone, so without the link; test_together.py has them talk.
"""

import socket
import sys
from pathlib import Path

import pytest

from tests.train.base import Base
from tests.train.live import live

ALONE = {"TOOLKIT_LINK": "off"}


def test_a_host_that_does_not_resolve_is_named_and_the_end_is_worth_a_retry(base: Base) -> None:
    base.program("print('started')\n")
    base.resources(["algo-1", "nowhere.invalid"])

    done = base.train(ALONE, TOOLKIT_JOIN_S="0.5", TOOLKIT_HOST_ADDRESSES="algo-1=127.0.0.1")

    assert done.status == 75
    assert b"started" not in done.stdout
    assert done.failure is not None
    assert "nowhere.invalid" in done.failure
    assert "algo-1 to resolve" not in done.failure


def test_names_are_not_waited_for_in_studios_local_mode(base: Base) -> None:
    base.program("print('started')\n")
    base.resources(["algo-1-x7k2p", "algo-2-x7k2p"])

    assert base.train(ALONE, SM_STUDIO_LOCAL_MODE="True").status == 0


def test_plain_scripts_on_several_hosts_know_their_master(base: Base) -> None:
    base.program("import os\nprint(os.environ['MASTER_ADDR'], os.environ['MASTER_PORT'])\n")
    base.resources(["second", "first"], current="first")
    addresses = {**ALONE, "TOOLKIT_HOST_ADDRESSES": "second=127.0.0.1,first=127.0.0.2"}

    assert base.train(addresses).stdout == b"127.0.0.1 7777\n"
    assert base.train(addresses, MASTER_ADDR="10.0.0.9", MASTER_PORT="1234").stdout == b"10.0.0.9 1234\n"


def test_a_master_that_does_not_listen_is_named(base: Base) -> None:
    if not any((Path(folder) / "torch").is_dir() for folder in sys.path):
        pytest.skip("torch is not installed")
    base.hyperparameters({"sagemaker_torch_distributed_enabled": "true"})
    base.program("")
    base.resources(["algo-1", "algo-2"], current="algo-2")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]

        done = base.train(
            ALONE,
            TOOLKIT_JOIN_S="0.5",
            TOOLKIT_HOST_ADDRESSES="algo-1=127.0.0.1,algo-2=127.0.0.2",
            MASTER_PORT=str(port),
        )

    assert done.status == 75
    assert done.failure is not None
    assert f"host algo-1 to listen on 127.0.0.1:{port}" in done.failure


def test_a_stop_while_waiting_ends_at_once(base: Base) -> None:
    base.program("print('started')\n")
    base.resources(["algo-1", "nowhere.invalid"])

    with live(base, **ALONE) as running:
        running.until(b"Invoking script")
        running.signal()
        done = running.end()

    assert done.status == 143
    assert b"started" not in done.stdout
