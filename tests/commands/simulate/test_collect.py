import os
import tarfile
import tracemalloc
from pathlib import Path

import pytest

from toolkit.commands.simulate import collect
from toolkit.commands.simulate.documents import HostSetup
from toolkit.commands.simulate.stage import StagedHost
from toolkit.log import Log
from toolkit.metrics.file import SampleFile, read
from toolkit.metrics.sample import Sample


@pytest.fixture
def hosts(tmp_path: Path) -> tuple[StagedHost, ...]:
    """Two hosts without any results."""
    staged = []
    for name in ("algo-1", "algo-2"):
        base = tmp_path / name
        for folder in ("model", "output/data"):
            (base / folder).mkdir(parents=True)
        setup = HostSetup(host=name, base=base, submitted=tmp_path / "s", port=1, cpus=1)
        staged.append(StagedHost(setup=setup, argv=(), environ={}, log=tmp_path / f"{name}.log"))
    return tuple(staged)


def write(host: StagedHost, name: str, content: str) -> None:
    path = host.setup.base / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


def content(archive: Path) -> dict[str, str]:
    with tarfile.open(archive) as tar:
        contents = {}
        for member in tar:
            file = tar.extractfile(member) if member.isfile() else None
            if file is not None:
                contents[member.name] = file.read().decode()
        return contents


def test_archives_hold_what_all_hosts_left(tmp_path: Path, hosts: tuple[StagedHost, ...]) -> None:
    write(hosts[0], "model/model.pt", "weights")
    write(hosts[0], "output/data/logs/rank-0.log", "zero")
    write(hosts[1], "output/data/logs/rank-1.log", "one")

    collected = collect.collect(tmp_path, hosts, Log())

    assert content(tmp_path / "model.tar.gz") == {"model.pt": "weights"}
    assert content(tmp_path / "output.tar.gz") == {"logs/rank-0.log": "zero", "logs/rank-1.log": "one"}
    assert collected.artifacts == {"logs": "logs/", "model": "model.tar.gz", "output": "output.tar.gz"}
    assert collected.notes == ()


def test_of_two_files_of_one_name_the_first_hosts_wins_and_it_is_said(
    tmp_path: Path, hosts: tuple[StagedHost, ...]
) -> None:
    for host, text in zip(hosts, ("mine", "yours"), strict=True):
        write(host, "model/same", "same")
        write(host, "model/model.pt", text)

    collected = collect.collect(tmp_path, hosts, Log())

    assert content(tmp_path / "model.tar.gz") == {"same": "same", "model.pt": "mine"}
    assert collected.notes == ("model.tar.gz: model.pt of algo-2 left out: algo-1 wrote the same names",)


def test_a_file_where_another_host_has_a_folder_is_left_out(tmp_path: Path, hosts: tuple[StagedHost, ...]) -> None:
    write(hosts[0], "model/a", "file")
    write(hosts[1], "model/a/b", "below")

    collected = collect.collect(tmp_path, hosts, Log())

    assert content(tmp_path / "model.tar.gz") == {"a": "file"}
    assert len(collected.notes) == 1


def test_what_an_archive_lacks_is_a_note(tmp_path: Path, hosts: tuple[StagedHost, ...]) -> None:
    write(hosts[0], "model/model.pt", "weights")
    write(hosts[1], "model/part.pt", "part")
    (hosts[1].setup.base / "model/dead").symlink_to("/nowhere")
    for number in range(12):
        os.mkfifo(hosts[0].setup.base / f"model/pipe-{number:02}")

    collected = collect.collect(tmp_path, hosts, Log())

    assert content(tmp_path / "model.tar.gz") == {"model.pt": "weights", "part.pt": "part"}
    dead = hosts[1].setup.base / "model/dead"
    assert collected.notes[0] == f"{dead}: is a link to /nowhere, where nothing is; model.tar.gz does not contain it"
    assert collected.notes[-1] == "model.tar.gz: the same of 3 more files or folders; the log above names them"
    assert len(collected.notes) == collect.SHOWN_FAULTS + 1


def test_a_link_to_its_own_opt_ml_is_relative_on_every_host(tmp_path: Path, hosts: tuple[StagedHost, ...]) -> None:
    for host in hosts:
        name = host.setup.host
        write(host, f"model/{name}.pt", name)
        write(host, "checkpoints/last", name)
        (host.setup.base / f"model/{name}-best").symlink_to(f"/opt/ml/model/{name}.pt")
        (host.setup.base / f"model/{name}-last").symlink_to("/opt/ml/checkpoints/last")

    assert collect.collect(tmp_path, hosts, Log()).notes == ()

    with tarfile.open(tmp_path / "model.tar.gz") as tar:
        assert [tar.getmember(f"{name}-best").linkname for name in ("algo-1", "algo-2")] == ["algo-1.pt", "algo-2.pt"]
    assert content(tmp_path / "model.tar.gz")["algo-2-last"] == "algo-2"


def test_links_stay_links_and_fifos_stay_behind(tmp_path: Path, hosts: tuple[StagedHost, ...]) -> None:
    write(hosts[0], "model/step-9", "9")
    (hosts[0].setup.base / "model/last").symlink_to("step-9")
    os.mkfifo(hosts[0].setup.base / "model/pipe")

    collect.collect(tmp_path, hosts, Log())

    with tarfile.open(tmp_path / "model.tar.gz") as tar:
        assert tar.getmember("last").linkname == "step-9"
        assert sorted(tar.getnames()) == ["last", "step-9"]


def test_metrics_of_all_hosts_are_one_file_by_time(tmp_path: Path, hosts: tuple[StagedHost, ...]) -> None:
    for number, host in enumerate(hosts):
        file = SampleFile(host.setup.base / "output/metrics.jsonl", warn=print)
        name = host.setup.host
        file.append([Sample(name="loss", value=float("nan"), time_s=index + number / 2, host=name) for index in (1, 2)])
        file.close()

    collect.collect(tmp_path, hosts, Log())

    merged = [(sample.time_s, sample.host) for sample in read(tmp_path / "metrics.jsonl")]
    assert merged == [(1.0, "algo-1"), (1.5, "algo-2"), (2.0, "algo-1"), (2.5, "algo-2")]


def test_samples_are_merged_in_bounded_memory(tmp_path: Path, hosts: tuple[StagedHost, ...]) -> None:
    for host in hosts:
        file = SampleFile(host.setup.base / "output/metrics.jsonl", warn=print)
        name = host.setup.host
        file.append([Sample(name="loss", value=index, time_s=index, host=name, rank=0) for index in range(20_000)])
        file.close()

    tracemalloc.start()
    try:
        collected = collect.collect(tmp_path, hosts, Log())
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak_bytes < 4 << 20  # All 40,000 samples together take 15 MB.
    assert collected.last["loss"].value == 19_999
    assert sum(1 for _ in read(tmp_path / "metrics.jsonl")) == 40_000


def test_the_last_value_is_the_lowest_ranks_whatever_the_order_of_hosts(
    tmp_path: Path, hosts: tuple[StagedHost, ...]
) -> None:
    for rank, host in enumerate(reversed(hosts)):
        file = SampleFile(host.setup.base / "output/metrics.jsonl", warn=print)
        file.append([Sample(name="loss", value=rank, time_s=1 + rank, host=host.setup.host, rank=rank)])
        file.close()

    assert collect.collect(tmp_path, hosts, Log()).last["loss"].value == 0


def test_a_host_that_left_nothing_at_all_is_no_hindrance(tmp_path: Path) -> None:
    setup = HostSetup(host="algo-1", base=tmp_path / "gone", submitted=tmp_path / "s", port=1, cpus=1)
    gone = (StagedHost(setup=setup, argv=(), environ={}, log=tmp_path / "l"),)

    collected = collect.collect(tmp_path, gone, Log())

    assert content(tmp_path / "model.tar.gz") == {}
    assert collected.notes == ()
    assert collect.outcomes(gone) == {}
    assert collect.failure_text(gone, "algo-1") == ""


def test_an_archive_that_cannot_be_written_is_a_note(tmp_path: Path, hosts: tuple[StagedHost, ...]) -> None:
    (tmp_path / "model.tar.gz").mkdir()
    (tmp_path / "model.tar.gz/in the way").write_text("")

    collected = collect.collect(tmp_path, hosts, Log())

    assert "model.tar.gz could not be packed" in collected.notes[0]
    assert collected.artifacts == {"logs": "logs/", "output": "output.tar.gz"}


def test_metrics_whose_regex_misreads_numbers_are_named() -> None:
    definitions = (("loss", "loss=([0-9.]+)"), ("whole", r"loss=([-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?|nan|inf)"))

    assert collect.misread(definitions) == ("loss",)
