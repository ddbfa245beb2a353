"""A module that wraps another one and has its names."""

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

ITSELF = "."  # The wrapper's name in messages; the modules' names are their paths.


class Wrapper(nn.Module):
    """*module*, under another class: parameters, buffers and modules are named as in *module*."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self._paths: dict[int, str] | None = None

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield all parameters, of which those of other partitions are on the meta device, with their names."""
        return self.module.named_parameters(*args, **kwargs)

    def named_buffers(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, Tensor]]:
        """Yield all buffers with their names."""
        return self.module.named_buffers(*args, **kwargs)

    def named_modules(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Module]]:
        """Yield the module and all below it with their paths."""
        modules: Iterator[tuple[str, nn.Module]] = self.module.named_modules(*args, **kwargs)
        return modules

    def named_children(self) -> Iterator[tuple[str, nn.Module]]:
        """Yield the module's children with their names."""
        return self.module.named_children()

    def train(self, mode: bool = True) -> "Wrapper":
        """Set the mode of all modules; all ranks call it."""
        self.training = mode
        self.module.train(mode)
        return self

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "module":
                raise
            return getattr(self.module, name)

    def path_of(self, module: nn.Module) -> str | None:
        """Return *module*'s path, ITSELF for this module, None if it is not in this one."""
        if module is self:
            return ITSELF
        if self._paths is None:
            self._paths = {id(submodule): path for path, submodule in self.module.named_modules()}
        return self._paths.get(id(module))

    def module_at(self, path: str) -> nn.Module:
        """Return the module at *path*."""
        return self if path == ITSELF else self.module.get_submodule(path)
