"""Counts what torch.compile does in this process: how often and how long it compiles, and why it did so again."""

import os
from time import monotonic

from ...frameworks.torch import compiler as torch_compiler

TYPE_CHECKING = False  # As typing's, without importing it.
if TYPE_CHECKING:
    from typing import Any

    from .budget import CompileBudget

# In guards of sizes, strides and dimensions (torch 2.13): "tensor 'x' size mismatch at index 0. expected 32, actual
# 24", "tensor 'x' rank mismatch. expected 2, actual 3", "Eq(s77, 16)", "2 <= L['x'].size()[0]".
_OF_SHAPES = ("size mismatch", "stride mismatch", "rank mismatch", ".size()[", ".stride()[", "Eq(s", "Ne(s")


class CompileCounter:
    """The compilations of this process since `start`. `count`: how many; `seconds`: how long they took together.

    What is not counted by this version of torch is None in `facts`. *budget*: bounds them, None: nothing does.
    """

    def __init__(self, budget: "CompileBudget | None" = None) -> None:
        self._budget = budget
        self.count = 0
        self.seconds = 0.0
        self._since_s = 0.0
        self._recompiled: dict[str, tuple[str, str]] = {}  # By compile_id, "frame/number": the code, and the guard.
        self._storms: set[str] = set()
        self._new_storms: list[tuple[str, str, int]] = []

    def start(self) -> None:
        """Count from here on. It imports torch's compiler: 0.2 to 1.6 s."""
        torch_compiler.watch_compilations(self._begins, self._ends)

    def _begins(self, *_: "Any") -> None:
        self._since_s = monotonic()
        if self._budget is not None:
            self._budget.begin()

    def _ends(self, *_: "Any") -> None:
        if self._budget is not None:
            self._budget.end()
        self.count += 1
        self.seconds += monotonic() - self._since_s

    def pop_storms(self) -> "list[tuple[str, str, int]]":
        """Return (code, guard, limit) for each code that has reached torch's limit; each is returned once."""
        self._read_metrics()
        storms, self._new_storms = self._new_storms, []
        return storms

    def _read_metrics(self) -> None:
        """Note the latest recompilations, and the code that has reached torch's limit with them."""
        limit = torch_compiler.read_recompile_limit()
        for metrics in torch_compiler.read_metrics():
            guard, frame = getattr(metrics, "recompile_reason", None), getattr(metrics, "compile_id", None) or ""
            if not guard or getattr(metrics, "is_forward", True) is False or frame in self._recompiled:
                continue
            code = "%s (%s:%s)" % (metrics.co_name, os.path.basename(metrics.co_filename or ""), metrics.co_firstlineno)
            self._recompiled[frame] = (code, _first_line(guard))
            code_id, _, number = frame.partition("/")
            if number.isdigit() and int(number) + 1 >= limit and code_id not in self._storms:
                self._storms.add(code_id)
                self._new_storms.append((code, _first_line(guard), limit))

    def facts(self) -> "dict[str, Any]":
        """Return the counts under the names of `Compilation` in job/compilation.py."""
        self._read_metrics()
        counters = torch_compiler.read_counters()
        frames: dict[str, list[Any]] = {}
        for code, guard in self._recompiled.values():
            latest = frames.setdefault(code, [guard, 0])
            latest[0], latest[1] = guard, latest[1] + 1
        return {
            "compile_s": round(self.seconds, 3),
            "compilations": self.count,
            "graphs": None if counters is None else counters["stats"]["unique_graphs"],
            "graph_breaks": None if counters is None else sum(counters["graph_break"].values()),
            "cache_hits": None if counters is None else _cache_hits(counters),
            "recompilations": [{"function": code, "reason": guard, "count": n} for code, (guard, n) in frames.items()],
        }


def advice(guard: str) -> str:
    """Return what a user can do about code that is compiled anew because *guard* failed."""
    if any(word in guard for word in _OF_SHAPES):
        return (
            "Give it the same shapes in all steps (pad batches, drop_last=True in the DataLoader), or compile it in the"
            " script, with torch.compile(model, dynamic=True)"
        )
    return (
        "Shapes are not the reason: keep what this guard names the same in all steps, or hold a number that changes in"
        " a tensor. TORCH_LOGS=recompiles in the job's environment shows every guard that failed"
    )


def _cache_hits(counters: "Any") -> int:
    """Return how many graphs came from the cache: whole ones (AOTAutograd), or their kernels."""
    return int(counters["aot_autograd"]["autograd_cache_hit"] or counters["inductor"]["fxgraph_cache_hit"])


def _first_line(reason: str) -> str:
    """Return the guard that failed without its compile id: "0/0: tensor 'x' size mismatch ..."."""
    line = reason.strip().splitlines()[0]
    head, _, rest = line.partition(": ")
    return rest if "/" in head and rest else line
