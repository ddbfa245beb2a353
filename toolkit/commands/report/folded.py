"""Pure: leaves out the charts that the HTML page folds, for text and Markdown."""

from collections.abc import Sequence

from toolkit.commands.report.model import Block, Chart

NAMED = 6


def split_folded(blocks: Sequence[Block]) -> tuple[tuple[Block, ...], str]:
    """Return *blocks* without folded charts, and a sentence on those, "" if there are none."""
    visible = tuple(block for block in blocks if not (isinstance(block, Chart) and block.folded))
    titles = [block.title for block in blocks if isinstance(block, Chart) and block.folded]
    if not titles:
        return visible, ""
    names = ", ".join(titles[:NAMED]) + (f" and {len(titles) - NAMED} more" if len(titles) > NAMED else "")
    are = "1 more chart is" if len(titles) == 1 else f"{len(titles)} more charts are"
    return visible, f"{are} not shown here ({names}): the HTML page and --format json have them."
