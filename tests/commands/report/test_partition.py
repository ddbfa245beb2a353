"""The drawing of a partition decision."""

import msgspec

from tests.parallelism.shapes import SHAPES
from toolkit.commands.report.model import Boxes, Table
from toolkit.commands.report.sections.partition import build_blocks, build_page
from toolkit.parallelism.partitioner import decide


def test_the_drawing_shows_each_device_and_level_as_wide_as_its_cost() -> None:
    decision = decide(SHAPES["perceptron"](), 2, 0.8, "x")

    devices, drawing, cuts = build_blocks(decision)

    assert isinstance(devices, Table) and isinstance(drawing, Boxes) and isinstance(cuts, Table)
    assert [(row[0], row[1]) for row in devices.rows] == [(0, 4), (1, 4)]
    assert drawing.rows == ("partition", "level 1")
    first, second = (box for box in drawing.boxes if box.row == 0)
    assert (first.label, first.end, second.label) == ("0", second.start, "1")
    assert abs((first.end - first.start) / (second.end - second.start) - 1) < 0.01
    assert [box.mark for box in drawing.boxes if box.row == 1] == ["0"] * 8 + ["1"] * 8
    assert cuts.rows == ((0, 1, 256 * 1024 * 4, 1),)


def test_the_table_of_modules_stops_where_a_module_is_whole_and_folds_equal_siblings() -> None:
    tree = SHAPES["small-llama"]()
    decision = msgspec.structs.replace(
        decide(tree, 2, 0.8, "x"), assignment={"": 0, "h.3.mlp": 1, "h.4": 1, "h.5": 1, "h.6": 1}
    )

    table = build_page(decision, "x", now_s=0.0).sections[1].blocks[0]

    assert isinstance(table, Table)
    assert [(row[0], row[2]) for row in table.rows] == [
        ("(model)", "0"),
        ("· embed", "0"),
        ("· h", "0"),
        ("· · h.0 to 2", "0"),
        ("· · h.3", "0"),
        ("· · · h.3.norm", "0"),
        ("· · · h.3.attn", "0"),
        ("· · · h.3.mlp", "1"),
        ("· · h.4 to 6", "1"),
        ("· norm to head", "0"),
    ]


def test_an_edited_assignment_is_said_to_be_edited() -> None:
    decided = decide(SHAPES["perceptron"](), 2, 0.8, "x")
    edited = msgspec.structs.replace(decided, assignment={**decided.assignment, "1": 1})

    assert build_page(decided, "x", now_s=0.0).status == decided.method
    page = build_page(edited, "x", now_s=0.0)

    assert page.status == "edited"
    assert (
        "edited: it is no longer that of the tree method. Its busiest partition costs 0.543 of the model"
        in page.summary
    )
