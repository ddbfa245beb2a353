import pytest

from toolkit.verdict.tail import last, lines


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        # A value with Windows line ends, in an error: nothing of it is overwritten.
        ("ValueError: no file 'a\r' in /data", "ValueError: no file 'a\\r' in /data"),
        ("torch.cuda.OutOfMemoryError: a\rb", "torch.cuda.OutOfMemoryError: a\\rb"),
        (
            "train.py: error: argument --lr: invalid float value: '3\r'",
            "train.py: error: argument --lr: invalid float value: '3\\r'",
        ),
        ("fatal: no branch a\rb", "fatal: no branch a\\rb"),
        ("ERROR: no a\rb", "ERROR: no a\\rb"),
        ("run.sh: 2: \r: not found", "run.sh: 2: \\r: not found"),
        ("run.sh: line 2: cd: /data\r: No such file", "run.sh: line 2: cd: /data\\r: No such file"),
        ("[rank1]: KeyError: 'a\rb'", "[rank1]: KeyError: 'a\\rb'"),
        ("ValueError: x\r", "ValueError: x"),
        # A bar.
        ("\r 10%|#  | 1/10\r 20%|## | 2/10", " 20%|## | 2/10"),
        ("epoch 1 error 0.5\repoch 2 error 0.4", "epoch 2 error 0.4"),
        ("\r 10%|#  | 1/10\rValueError: no data", "ValueError: no data"),
        ("1/2 loss 3\b\b\b\b\b\b\b\b\b\b2/2 loss 1", "2/2 loss 1"),
    ],
)
def test_a_bar_shows_its_last_state_and_an_error_all_of_itself(line: str, shown: str) -> None:
    assert lines(f"{line}\n".encode())[0] == shown
    assert last(f"{line}\n".encode(), 1, 600) == shown.rstrip()
