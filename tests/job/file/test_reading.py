from collections.abc import Callable
from pathlib import Path

import pytest

from toolkit.errors import ContractError
from toolkit.job.file.reading import read

NAMED = "Name a job file."
PATHS: list[tuple[str, Callable[[Path], object], str, str]] = [
    ("nothing", lambda file: None, "found nothing", NAMED),
    ("a near name", lambda file: file.with_name("jobs.toml").touch(), "found nothing", "Did you mean jobs.toml?"),
    ("another kind", lambda file: file.with_name("job.yaml").touch(), "found nothing", "Did you mean job.yaml?"),
    ("a folder", lambda file: file.mkdir(), "found a folder", NAMED),
    (
        "a loop",
        lambda file: file.symlink_to(file),
        "found one that cannot be read (Too many levels",
        "Correct the path",
    ),
    ("UTF-16", lambda file: file.write_text("x", "utf-16"), "found bytes that are not UTF-8 (", "Save it as UTF-8."),
]


@pytest.mark.parametrize(("make", "description", "hint"), [row[1:] for row in PATHS], ids=[row[0] for row in PATHS])
def test_what_is_there_in_place_of_a_job_file_is_told(
    tmp_path: Path, make: Callable[[Path], object], description: str, hint: str
) -> None:
    file = tmp_path / "job.toml"
    make(file)

    with pytest.raises(ContractError) as caught:
        read(file, NAMED)

    assert caught.value.message.startswith(f"expected a job file, {description}")
    assert caught.value.where == str(file)
    assert caught.value.hint.startswith(hint)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ContractError, match=f"expected a job file, found no folder {tmp_path / 'gone'}. Name"):
        read(tmp_path / "gone/job.toml", NAMED)


@pytest.mark.parametrize(("name", "content"), [("job.TOML", 'script = "t.py"'), ("job.JSON", '{"script": "t.py"}')])
def test_a_job_file_may_be_named_in_capitals(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)

    assert read(tmp_path / name, NAMED)["script"] == str(tmp_path / "t.py")
