"""The frame that is named of an exception: the user's own innermost one, and the library's beside it."""

from pathlib import Path

import msgspec
import pytest

import toolkit
from tests.train.launchers.jobs import job_of, script_of
from toolkit.train.verdict.error_frame import describe_place, find_user_frame, shorten_frame, user_paths_of

OWN = user_paths_of(job_of(script=script_of()))
USERS = "/opt/ml/code/train.py:9 in main"
TOOLKIT = str(Path(toolkit.__file__).parent)
LIBRARIES = [
    ("<frozen os>:679 in __getitem__", "<frozen os>:679 in __getitem__"),
    ("<string>:1 in <module>", "<string>:1 in <module>"),
    ("/usr/lib/python3.11/json/decoder.py:355 in raw_decode", "json/decoder.py:355 in raw_decode"),
    ("/opt/conda/lib/python3.12/site-packages/torch/nn/modules/module.py:1 in f", "torch/nn/modules/module.py:1 in f"),
    ("/usr/lib/python3/dist-packages/yaml/__init__.py:1 in load", "yaml/__init__.py:1 in load"),
    # An environment in the code folder itself.
    ("/opt/ml/code/.venv/lib/python3.11/site-packages/x.py:2 in f", "x.py:2 in f"),
    ("/usr/lib/pypy3.10/os.py:2 in f", "os.py:2 in f"),
    ("/usr/lib/python311.zip/os.py:2 in f", "os.py:2 in f"),
    (f"{TOOLKIT}/rank/modelparallel/torch/step.py:7 in f", "toolkit/rank/modelparallel/torch/step.py:7 in f"),
    ("/tmp/__autograph_generated_file1x.py:33 in tf__step", "/tmp/__autograph_generated_file1x.py:33 in tf__step"),
    ("/tmp/torchinductor_root/ab/cab.py:3 in call", "/tmp/torchinductor_root/ab/cab.py:3 in call"),
]


@pytest.mark.parametrize(("frame", "name"), LIBRARIES)
def test_a_librarys_frame_stands_beside_the_users(frame: str, name: str) -> None:
    assert describe_place((frame, USERS, "<frozen runpy>:88 in _run_code"), OWN) == f"{USERS}, raised in {name}"
    assert describe_place((frame, "train.py:3 in f"), OWN) == f"train.py:3 in f, raised in {name}"


def test_an_error_in_the_users_own_code_has_one_place() -> None:
    assert describe_place((USERS, "/usr/lib/python3.11/threading.py:1 in run"), OWN) == USERS


def test_without_a_frame_of_the_user_the_innermost_one_is_named() -> None:
    assert describe_place((LIBRARIES[2][0], "<frozen runpy>:88 in _run_code"), OWN) == LIBRARIES[2][0]
    assert describe_place((), OWN) == ""


def test_code_below_the_code_folder_comes_before_a_checkout_elsewhere_which_comes_before_libraries() -> None:
    checkout = "/workspace/Megatron-LM/megatron/training.py:88 in train"

    assert find_user_frame((checkout, USERS), OWN) == USERS
    assert find_user_frame((LIBRARIES[3][0], checkout, "/usr/local/bin/torchrun:6 in <module>"), OWN) == checkout
    assert find_user_frame((LIBRARIES[3][0], "/usr/local/bin/torchrun:6 in <module>"), OWN) == ""


def test_a_package_that_pip_installs_from_the_code_folder_is_the_users_own() -> None:
    user_paths = user_paths_of(job_of(script=script_of("trainer.main", "package")))
    frame = "/usr/lib/python3/site-packages/trainer/data.py:3 in load"

    assert (
        find_user_frame((LIBRARIES[2][0], frame, "/usr/lib/python3/site-packages/trainers/x.py:1 in f"), user_paths)
        == frame
    )
    assert find_user_frame((LIBRARIES[2][0], "/usr/lib/python3/site-packages/trainer.py:3 in f"), user_paths).endswith(
        ":3 in f"
    )


def test_a_place_is_short_relative_to_the_code_folder() -> None:
    assert shorten_frame(USERS, OWN) == "train.py:9 in main"
    assert shorten_frame("/workspace/x.py:3 in f", OWN) == "/workspace/x.py:3 in f"


def test_only_one_file_tells_the_users_code_from_a_librarys_and_one_reads_errors_for_advice() -> None:
    texts = {path.name: path.read_text() for path in (Path(TOOLKIT) / "train/verdict").glob("*.py")}

    # tail.py: whose warning a line is, not where an error is.
    assert sorted(name for name, text in texts.items() if "-packages" in text) == ["error_frame.py", "tail.py"]
    assert [name for name, text in texts.items() if "advice import" in text] == ["judge.py"]


def test_a_job_without_a_script_has_no_frames_of_its_own() -> None:
    assert user_paths_of(msgspec.structs.replace(job_of(script=script_of()), script=None)) == ()
