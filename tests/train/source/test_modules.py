from pathlib import Path

from toolkit.train.source.modules import path_of


def test_a_module_of_the_code_is_found_where_it_is_nearest(tmp_path: Path) -> None:
    for name in ("src/pkg/__init__.py", "old/versions/pkg/a.py", "lib/one.py", ".venv/hidden.py", "wandb/run.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "src" / "loop").symlink_to(tmp_path)

    assert path_of("pkg", tmp_path) == f"{tmp_path}/src/pkg"
    assert path_of("one", tmp_path) == f"{tmp_path}/lib/one.py"
    assert [path_of(name, tmp_path) for name in ("wandb", "hidden", "none")] == ["", "", ""]
    assert path_of("pkg", tmp_path / "gone") == ""
