"""The torch Work that represents a running all-reduce: scripts wait for it, and DDP uses its Future.

torch's own wrapper of a future (_create_work_from_future) is not usable: its wait() reports success when the future has
failed (torch 2.13), and the script would continue with gradients that were never summed.
"""

from typing import Any


def make_work_class() -> Any:
    """Return the Work's class. A reducer makes it once: torch takes half a millisecond for a class."""
    from torch.distributed import Work
    from torch.futures import Future

    class HierarchicalWork(Work):
        """A hierarchical all-reduce of *tensors*."""

        def __init__(self, tensors: list[Any]) -> None:
            super().__init__()
            self._tensors = tensors
            self._failure: Exception | None = None
            self._begun: Future[None] = Future()
            self._future = self._begun.then(self._outcome)

        def end(self, failure: Exception | None) -> None:
            """Wake the waiters. They raise *failure*, if there is one."""
            self._failure = failure
            self._begun.set_result(None)

        def wait(self, timeout: Any = None) -> bool:  # noqa: ARG002 - the group's timeout applies
            self._begun.wait()
            if self._failure is not None:
                raise RuntimeError(str(self._failure)) from self._failure
            return True

        def get_future(self) -> Any:
            return self._future

        def is_completed(self) -> bool:
            return self._begun.done()

        def is_success(self) -> bool:
            return self._begun.done() and self._failure is None

        def result(self) -> list[Any]:
            return self._tensors

        def _outcome(self, _: Any) -> list[Any]:
            # Raised inside `then`, an exception reaches those who wait in C++ too; set_exception's does not.
            if self._failure is not None:
                raise self._failure
            return self._tensors

    return HierarchicalWork
