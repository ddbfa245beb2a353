"""A rank's own file, at a place whose name anybody can know."""

from pathlib import Path

from toolkit.train.supervise.relay import RankFile


def test_a_link_where_a_ranks_file_should_be_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "theirs").write_text("kept")
    (tmp_path / "algo-1-rank-0.log").symlink_to(tmp_path / "theirs")
    noted: list[str] = []

    file = RankFile(tmp_path / "algo-1-rank-0.log", 1 << 20, noted.append)
    file.add(b"a line\n")
    file.close()

    assert (tmp_path / "theirs").read_text() == "kept"
    (note,) = noted
    assert "no file for this rank, the console goes on" in note
