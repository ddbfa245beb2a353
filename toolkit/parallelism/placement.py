"""The placement of ranks: their numbers in the pipeline, in the tensor parallel group and among the replicas.

P is the pipeline dimension (partitions), T the tensor parallel one, D the reduced data parallel one (replicas). A
placement strategy is a permutation of the three letters: the left one varies slowest over the ranks, neighbouring ranks
differ in the right one ("cluster" is DPT, "spread" TPD). size = P x T x D; the library's names: mp = pp x tp, dp = tp x
rdp (the API reference of SageMaker's model parallel library, "Ranking Basics").
"""

from toolkit.errors import ContractError
from toolkit.records import Record

STRATEGIES = {"cluster": "DPT", "spread": "TPD"}
KINDS = ("world", "pp", "tp", "rdp", "mp", "dp")
# The dimensions in which the ranks of a group differ.
VARIES = {"world": "PTD", "pp": "P", "tp": "T", "rdp": "D", "mp": "PT", "dp": "TD"}


class Placement(Record, frozen=True, kw_only=True):
    """*size* ranks, of which *partitions* x *tensor_parallel_degree* hold one copy of the model; *order* as "DPT"."""

    size: int
    partitions: int
    tensor_parallel_degree: int
    order: str = "DPT"

    @property
    def replicas(self) -> int:
        """The copies of the model: the size of the reduced data parallel groups."""
        return self.size // (self.partitions * self.tensor_parallel_degree)

    def coordinates(self, rank: int) -> dict[str, int]:
        """Return {"P": pp rank, "T": tp rank, "D": rdp rank} of *rank*, 0 to size - 1."""
        coordinates = {}
        for letter in reversed(self.order):
            rank, coordinates[letter] = divmod(rank, self._extent(letter))
        return coordinates

    def group(self, kind: str, rank: int) -> tuple[int, ...]:
        """Return the ranks, in ascending order, of *rank*'s group of *kind* (one of KINDS)."""
        coordinates = self.coordinates(rank)
        fixed = [letter for letter in self.order if letter not in VARIES[kind]]
        return tuple(
            member
            for member in range(self.size)
            if all(self.coordinates(member)[letter] == coordinates[letter] for letter in fixed)
        )

    def rank_in(self, kind: str, rank: int) -> int:
        """Return *rank*'s number in its group of *kind*: its index in ascending order of ranks."""
        return self.group(kind, rank).index(rank)

    def _extent(self, letter: str) -> int:
        return {"P": self.partitions, "T": self.tensor_parallel_degree, "D": self.replicas}[letter]


def place(size: int, partitions: int, tensor_parallel_degree: int, strategy: str, source: str) -> Placement:
    """Return the placement of *size* ranks by *strategy*: "cluster", "spread" or a permutation of D, P and T.

    Raises:
        ContractError: size is not partitions x tensor parallel degree x a whole number, or an unknown strategy.
    """
    model = partitions * tensor_parallel_degree
    if size < model or size % model:
        lower_choice = f"{size // model * model} or " if size > model else ""
        raise ContractError(
            f"expected a number of ranks that {model} divides (partitions {partitions} x tensor_parallel_degree "
            f"{tensor_parallel_degree}), found {size}",
            where=source,
            hint=f"Start {lower_choice}{(size // model + 1) * model} ranks (hosts x "
            "processes_per_host), or change the parameters.",
        )
    order = parse_strategy(strategy, source)
    return Placement(size=size, partitions=partitions, tensor_parallel_degree=tensor_parallel_degree, order=order)


def parse_strategy(strategy: str, source: str) -> str:
    """Return *strategy* as a permutation of "DPT".

    Raises:
        ContractError: it is not one.
    """
    order = STRATEGIES.get(strategy, strategy)
    if sorted(order) != sorted("DPT"):
        raise ContractError(
            f"expected placement_strategy cluster, spread or an order of the letters D, P and T, found {strategy!r}",
            where=source,
            hint="The default is cluster.",
        )
    return order
