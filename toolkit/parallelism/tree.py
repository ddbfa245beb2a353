"""A model as the partitioner sees it: a tree of modules with their costs."""

from collections.abc import Iterator

from toolkit.records import Record


class Module(Record, frozen=True, kw_only=True):
    """One module. *name* is its path from the root ("transformer.h.0"; the root's is "").

    Costs are of the module with everything below it, for one microbatch: `compute_s` of forward and backward,
    `activation_bytes` that the backward pass needs saved, `input_bytes` and `output_bytes` of the tensors that all its
    calls take and return. `parameter_bytes` counts each parameter once, where it appears first in the tree. `shares`
    names modules that themselves hold, or compute with, a parameter that this one holds or computes with: they and this
    one stay on one device. `calls`: how often one forward pass of the model calls it, 0 for a mere container.
    `sequential`: it only calls its children one after another, each with the output of the one before. `kind`: the
    class, for people.
    """

    name: str
    kind: str = ""
    parameter_bytes: int = 0
    activation_bytes: int = 0
    input_bytes: int = 0
    output_bytes: int = 0
    compute_s: float = 0.0
    calls: int = 1
    sequential: bool = False
    shares: tuple[str, ...] = ()
    children: tuple["Module", ...] = ()

    def walk(self) -> Iterator["Module"]:
        """Yield this module and everything below it, parents before children, in order of execution."""
        yield self
        for child in self.children:
            yield from child.walk()
