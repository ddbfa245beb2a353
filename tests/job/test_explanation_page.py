"""docs/for-programs.md has every key of the answer. `python -m tests.job.test_explanation_page` writes its tables."""

from pathlib import Path

import msgspec

from toolkit.job.explanation import Explanation, LogLine

PAGE = Path(__file__).parents[2] / "docs/for-programs.md"


def with_tables(page: str) -> str:
    """Return *page* with a row for each key of the answer and of its evidence."""
    for name, record in (("keys", Explanation), ("evidence", LogLine)):
        properties = msgspec.json.schema(record)["$defs"][record.__name__]["properties"]
        rows = "| key | meaning |\n|---|---|\n" + "".join(
            f"| `{key}` | {field.get('description') or field['anyOf'][0]['description']} |\n"
            for key, field in properties.items()
        )
        before, begin, after = page.partition(f"<!-- {name} -->\n")
        page = before + begin + rows + after[after.index(f"<!-- /{name} -->") :]
    return page


def test_the_page_explains_every_key() -> None:
    assert PAGE.read_text() == with_tables(PAGE.read_text())


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
