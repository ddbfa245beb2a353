"""The model, for the partitioner: a tree of modules with their costs."""

from collections.abc import Iterator

from toolkit.records import Record


class Module(Record, frozen=True, kw_only=True):
    """One module. Its costs include everything below it, for one microbatch."""

    name: str
    """The path from the root ("transformer.h.0"); the root's is ""."""
    kind: str = ""
    """The class, for people."""
    parameter_bytes: int = 0
    """The parameters. Each counts once, where it appears first in the tree."""
    activation_bytes: int = 0
    """The activations that the forward pass saves for the backward pass."""
    input_bytes: int = 0
    """The tensors that all its calls take."""
    output_bytes: int = 0
    """The tensors that all its calls return."""
    compute_s: float = 0.0
    """The time of forward and backward pass."""
    calls: int = 1
    """The calls of it in one forward pass of the model; 0 for a mere container."""
    sequential: bool = False
    """True if it only calls its children one after another, each with the output of the previous one."""
    shares: tuple[str, ...] = ()
    """The modules that hold, or compute with, a parameter that this one holds or computes with. They and this module
    stay on one device."""
    children: tuple["Module", ...] = ()
    """The modules below it, in order of execution."""

    def walk(self) -> Iterator["Module"]:
        """Yield this module and everything below it, parents before children, in order of execution."""
        yield self
        for child in self.children:
            yield from child.walk()
