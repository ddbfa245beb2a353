"""CUDA_VISIBLE_DEVICES, as CUDA reads it."""

import pytest

from toolkit.job.visible import hides_all, visible

GPUS = ("GPU-8f1c", "GPU-8f2d", "GPU-aa00", "GPU-bb11")
INSTANCES = ("MIG-1234", "MIG-5678")


@pytest.mark.parametrize(
    ("text", "count", "doubt"),
    [
        ("0,1", 2, ""),
        (" 3 , 0 ", 2, ""),
        ("2", 1, ""),
        ("", 0, ""),
        ("-1", 0, ""),
        ("NoDevFiles", 0, ""),
        ("0,-1,1", 1, ""),  # Hides what follows, as CUDA's manual advises.
        ("0,,1", 1, ""),
        ("0,1,", 2, ""),
        ("0,9,1", 1, "no GPU 9"),
        ("all", 0, "no GPU all"),
        ("0,0", 0, "named twice"),
        ("1,GPU-8f2d", 0, "named twice"),
        ("GPU-aa00,GPU-bb11", 2, ""),
        ("GPU-aa", 1, ""),  # The beginning of a UUID that is the only such.
        ("GPU-8f", 0, "no GPU GPU-8f"),
        ("GPU-none", 0, "no GPU GPU-none"),
        ("MIG-1234", 1, ""),
        ("MIG-1234,MIG-5678", 1, ""),  # CUDA shows a process one instance.
        ("MIG-GPU-8f1c/1/0", 1, ""),  # The form of drivers before R470.
        ("MIG-0000", 0, "no instance MIG-0000"),
    ],
)
def test_what_cuda_shows(text: str, count: int, doubt: str) -> None:
    gpus = visible(text, GPUS, INSTANCES)

    assert gpus.count == count
    assert (doubt in gpus.doubt) if doubt else (gpus.doubt == "")


@pytest.mark.parametrize(
    ("text", "is_none"),
    [("", True), ("-1", True), ("-1,0", True), ("NoDevFiles", True), ("0,-1", False), ("GPU-1", False), ("x", False)],
)
def test_a_value_that_asks_for_no_gpu(text: str, is_none: bool) -> None:
    assert hides_all(text) is is_none
