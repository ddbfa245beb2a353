from typing import Any

import pytest
from msgspec.structs import replace

from toolkit.job.drift import compare_jobs, compare_manifests
from toolkit.job.manifest import FileTree, Hardware, Interpreter, ManifestChannel, RunManifest

MACHINE = Hardware(
    architecture="x86_64", cpu="EPYC", cpus=8, memory_bytes=1, kernel="6.1", system="Debian", libc="glibc 2.36"
)
TREE = FileTree(digest="aa" * 16, files=2, bytes=30, digests={"a": "1", "b": "2"})
MANIFEST = RunManifest(
    toolkit="0.1.0",
    host="algo-1",
    hosts=1,
    script="train.py",
    strategy="script",
    processes_per_host=1,
    hyperparameters={"lr": "0.1"},
    seeds={"PYTHONHASHSEED": "0"},
    source=TREE,
    source_commit="abc",
    channels={"training": ManifestChannel(mode="File", tree=TREE)},
    interpreter=Interpreter(path="/bin/python", version="3.11.7", implementation="cpython"),
    packages={"numpy": "2.1.0 0123456789abcdef"},
    hardware=MACHINE,
    environment={"OMP_NUM_THREADS": "0011223344556677", "HF_TOKEN": "secret", "PWD": "12", "PYTHONHASHSEED": "34"},
)


def changed_tree(**more: Any) -> FileTree:
    return replace(TREE, digest="bb" * 16, digests={"a": "1", "b": "3"}, **more)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"packages": {"numpy": "2.2.0 0123456789abcdef"}}, "package numpy: 2.1.0 -> 2.2.0"),
        (
            {"packages": {"numpy": "2.1.0 9999999999abcdef"}},
            "package numpy: 2.1.0 (RECORD 01234567) -> 2.1.0 (RECORD 99999999)",
        ),
        ({"packages": {}}, "package numpy: 2.1.0 -> -"),
        (
            {"channels": {"training": ManifestChannel(mode="File", tree=changed_tree())}},
            "channel training, b: 2 files, 30 bytes, aaaaaaaa -> 2 files, 30 bytes, bbbbbbbb",
        ),
        ({"channels": {}}, "channel training: File -> -"),
        ({"source": changed_tree(bytes=31)}, "source b: 2 files, 30 bytes, aaaaaaaa -> 2 files, 31 bytes, bbbbbbbb"),
        ({"source_commit": "abd"}, "commit: abc -> abd"),
        ({"hyperparameters": {"lr": "0.2"}}, "hyperparameter lr: 0.1 -> 0.2"),
        ({"seeds": {"PYTHONHASHSEED": "1"}}, "seed PYTHONHASHSEED: 0 -> 1"),
        ({"hosts": 2}, "distribution hosts: 1 -> 2"),
        ({"hardware": replace(MACHINE, gpus=("H200", "H200"))}, "machine GPUs: - -> 2 x H200"),
        (
            {"environment": {**MANIFEST.environment, "OMP_NUM_THREADS": "8899aabbccddeeff"}},
            "variable OMP_NUM_THREADS: a value with digest 00112233 -> a value with digest 8899aabb",
        ),
        (
            {"environment": {**MANIFEST.environment, "HF_TOKEN": "00"}},
            "variable HF_TOKEN: set to a secret -> a value with digest 00",
        ),
    ],
)
def test_each_change_is_named_by_itself(change: dict[str, Any], line: str) -> None:
    differences = [str(difference) for difference in compare_manifests(MANIFEST, replace(MANIFEST, **change))]

    assert differences == [line]


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"job": "another"},
        {"source_commit": ""},
        {"environment": {**MANIFEST.environment, "PWD": "99", "HOSTNAME": "1"}},
        {"interpreter": replace(MANIFEST.interpreter, path="/opt/python")},
        {"channels": {"training": ManifestChannel(mode="File", tree=None)}},
    ],
)
def test_what_differs_in_every_run_or_is_not_known_is_no_drift(change: dict[str, Any]) -> None:
    assert list(compare_manifests(MANIFEST, replace(MANIFEST, **change))) == []


def test_a_large_file_is_said_to_be_judged_by_size_and_time() -> None:
    first, second = (
        replace(MANIFEST, source=replace(tree, unread_files=1, digests={})) for tree in (TREE, changed_tree())
    )

    (difference,) = compare_manifests(first, second)

    assert difference.second.endswith("(large files by size and time: 1)")


def test_hosts_are_named_where_not_all_differ() -> None:
    other = replace(MANIFEST, packages={"numpy": "2.2.0 0"})
    hosts = {"algo-1": MANIFEST, "algo-2": MANIFEST}

    assert [d.hosts for d in compare_jobs(hosts, {"algo-1": MANIFEST, "algo-2": other})] == [("algo-2",)]
    assert [d.hosts for d in compare_jobs(hosts, {"algo-1": other, "algo-2": other})] == [()]
    assert [d.hosts for d in compare_jobs({"a": MANIFEST}, {"b": other})] == [()]
    assert compare_jobs({}, {"b": other}) == ()


def test_the_most_weighty_changes_come_first() -> None:
    other = replace(
        MANIFEST,
        source=changed_tree(),
        packages={"numpy": "3.0.0 0"},
        environment={},
        hyperparameters={"lr": "1"},
        channels={"training": ManifestChannel(mode="File", tree=changed_tree())},
    )

    parts = [difference.part for difference in compare_manifests(MANIFEST, other)]

    assert list(dict.fromkeys(parts)) == ["source", "hyperparameter", "channel", "package", "variable"]
