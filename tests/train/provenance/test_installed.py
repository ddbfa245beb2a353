import json
import sys
from hashlib import sha256
from pathlib import Path

import pytest

from toolkit.train.provenance.installed import CHUNK_BYTES, list_packages, search_path_of


def package(folder: Path, name: str, record: str | None = "a.py,sha256=x,1\n", place: str = "") -> None:
    info = folder / name
    info.mkdir(parents=True)
    if record is not None:
        (info / "RECORD").write_text(record)
    if place:
        (info / "direct_url.json").write_text(place)


def test_the_first_folder_of_the_path_counts_and_names_are_normal(tmp_path: Path) -> None:
    package(tmp_path / "one", "My_Package.x-1.0.dist-info")
    package(tmp_path / "two", "my_package_x-2.0.dist-info")
    package(tmp_path / "two", "old-3.1-py3.11.egg-info", record=None)

    versions, _ = list_packages([str(tmp_path / "one"), str(tmp_path / "two"), str(tmp_path / "none.zip")])

    digest = sha256(b"a.py,sha256=x,1\n").hexdigest()[:16]
    assert versions == {"my-package-x": f"1.0 {digest}", "old": "3.1 -"}


def test_a_package_from_elsewhere_has_its_place(tmp_path: Path) -> None:
    record = "x-1.dist-info/direct_url.json,sha256=y,2\n"
    git = {"url": "https://host/x.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}}
    package(tmp_path, "x-1.dist-info", record, json.dumps(git))
    package(tmp_path, "y-1.dist-info", record, json.dumps({"url": "file:///src/y", "dir_info": {"editable": True}}))
    package(tmp_path, "z-1.dist-info", record, "[damaged")

    assert list_packages([str(tmp_path)])[1] == {"x": "https://host/x.git@abc", "y": "file:///src/y"}


@pytest.mark.parametrize("length", [CHUNK_BYTES, 3 * CHUNK_BYTES])
def test_a_record_is_digested_whole_and_its_place_seen_wherever_it_stands(tmp_path: Path, length: int) -> None:
    for shift in range(-40, 8):
        record = f"{'x' * (length + shift)}\nx-1.dist-info/direct_url.json,,\n"
        package(tmp_path / str(shift), "x-1.dist-info", record, json.dumps({"url": "file:///x"}))

        versions, places = list_packages([str(tmp_path / str(shift))])

        assert versions == {"x": f"1 {sha256(record.encode()).hexdigest()[:16]}"}
        assert places == {"x": "file:///x"}


def test_another_interpreter_has_the_folders_of_its_installation(tmp_path: Path) -> None:
    site = tmp_path / "lib/python3.12/site-packages"
    site.mkdir(parents=True)

    path = search_path_of(str(tmp_path / "bin/python"), sys.path, sys.executable, "/more")

    assert path[0] == "/more"
    assert str(site) in path
    assert search_path_of(sys.executable, ["/a"], sys.executable, "") == ["/a"]
