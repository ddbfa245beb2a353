"""The facts about what the compiler did in this process, for `train` and the job's page: a JSON file in the status
folder.

The fields are those of `Compilation` in job/compilation.py. It needs neither msgspec nor typing: the rank's interpreter
need not have them.
"""

import json
import os

from ...status_pages.layout import COMPILER_NAME, VARIABLE

TYPE_CHECKING = False  # As typing's, without importing it.
if TYPE_CHECKING:
    from typing import Any


class FactsFile:
    """The file of this process. `facts`: what it holds. Without a status folder nothing is written."""

    def __init__(self, framework: str) -> None:
        rank = os.environ.get("RANK", "0")
        self.facts: dict[str, Any] = {"framework": framework, "rank": int(rank) if rank.isdigit() else 0}
        self._pid = os.getpid()

    def write(self, **facts: "Any") -> None:
        """Change *facts* and write all facts, as a whole file. A forked child, which trains nothing, writes none."""
        self.facts.update(facts)
        folder = os.environ.get(VARIABLE)
        if not folder or os.getpid() != self._pid:
            return
        path = os.path.join(folder, COMPILER_NAME % self._pid)
        try:
            with open(path + ".tmp", "w", encoding="utf-8") as file:
                json.dump(self.facts, file)
            os.replace(path + ".tmp", path)
        except OSError:
            pass  # The facts are for the page: training goes on without them.
