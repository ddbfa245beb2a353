"""A target: a property, and what its examples are made of. A hypothesis test is made from it anew for each seed."""

from collections.abc import Callable
from typing import Any, NamedTuple

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy, tuples


class Target(NamedTuple):
    """`check` raises where a promise is broken."""

    check: Callable[..., None]
    strategies: tuple[SearchStrategy[Any], ...]

    def play(self, number: int, examples: int, *, shrink: bool = True) -> None:
        """Try so many *examples*, made from seed *number*.

        Raises:
            Exception: what the check raised, on the smallest example that was found.
        """

        def check(values: tuple[Any, ...]) -> None:
            self.check(*values)

        test = settings(
            max_examples=examples,
            database=None,
            deadline=None,
            phases=(Phase.generate, Phase.shrink) if shrink else (Phase.generate,),
            suppress_health_check=list(HealthCheck),
        )(seed(number)(given(tuples(*self.strategies))(check)))
        test()


def target(*strategies: SearchStrategy[Any]) -> Callable[[Callable[..., None]], Target]:
    """Make a target of a function that takes one value of each of *strategies*."""
    return lambda check: Target(check, strategies)
