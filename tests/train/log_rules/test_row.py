import pytest

from toolkit.train.log_rules.row import Row


@pytest.mark.parametrize(
    ("answers", "turns"),
    [
        ("ttt", "..T"),
        ("ttttttttt", "..T......"),
        ("ttfttft", "......."),
        ("tttfff", "..T..F"),
        ("tttfftfff", "..T.....F"),
        ("tttfffttt", "..T..F..T"),
        ("ffffff", "......"),
    ],
)
def test_three_in_a_row_turn_it_and_three_turn_it_back(answers: str, turns: str) -> None:
    row = Row()

    marks = ["TF"[not row.state] if row.add(answer == "t", 3) else "." for answer in answers]

    assert "".join(marks) == turns


def test_it_is_new_until_something_counts() -> None:
    row = Row()

    states = [row.is_new]
    for answer in (False, True, False):
        row.add(answer, 3)
        states.append(row.is_new)

    assert states == [True, True, False, True]
