"""Pure: a comparison of two modes of a training step, eager and a candidate, on the job's own steps, which take turns.

After two steps of the candidate (compiled code, bfloat16), which may compile, both run in turns: eager, candidate,
candidate, eager, ... so that a drift of the machine meets both. (Blocks of steps, one after the other, lie: on 2 shared
cores a module that was back on eager "measured" 35.8 ms against 52.5.) Whose turn it is follows from the number of the
step alone, so that ranks that step alike run the same, whatever else happens on one of them. The candidate is kept if
it is faster by the margin below.

    interleaving = Interleaving()
    while not interleaving.is_over:
        took_s, is_clean = run(interleaving.turn)
        interleaving.step_ended(took_s, is_clean=is_clean)
        if interleaving.due:
            # Of several ranks: slowest(pairs of all ranks)
            decision = decide(interleaving.pairs.values(), interleaving.due)
            if decision is not None:
                interleaving.end()

It runs in the ranks' interpreters: neither msgspec nor typing is imported.
"""

EAGER, CANDIDATE = "eager", "candidate"
# The candidate must be faster by this share, or what it costs for new shapes later is not worth it.
MARGIN = 0.02
# Steps of the candidate before the first pair: what it compiles, and what it compiles again for other shapes.
WARM_STEPS = 2
# After how many pairs there may be a decision. Short steps vary more, and cost less: they get the later ones as well.
DUE = (3, 6, 12, 24, 48, 96)
ENOUGH_PAIRS = 24
ENOUGH_S = 1.0
# What may be measured, in seconds, if a decision needs no more than the fewest pairs.
MOST_S = 60.0
FEWEST_PAIRS = 3
CLEAR_PAIRS = 6
# The candidate is not kept on less than this: 6 pairs of a step of 1 ms are over while another process has the cores
# (at a load of 30 they gave 1.42 for an MLP that is slower compiled).
CLEAR_S = 0.25
# A candidate this much slower is not tried any longer.
HOPELESS = 1.5
# So much slower, and by so many seconds, that it compiles anew at each step: the fewest pairs show it.
ENDLESS, ENDLESS_S = 10.0, 0.25
# Steps of the candidate that may compile something: with shapes that change at each step that would not end.
MOST_COMPILING = 8
TYPE_CHECKING = False  # As typing's, without importing it.
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    Pair = tuple[float, float]


class TrialDecision:
    """The outcome of a trial. *pairs*: how many were compared. *eager_s*, *candidate_s*: medians of the steps.
    *reason*: why the candidate is not kept, "" if the figures decided."""

    def __init__(
        self, *, keeps_candidate: bool, pairs: int, eager_s: float, candidate_s: float, reason: str = ""
    ) -> None:
        self.keeps_candidate = keeps_candidate
        self.pairs = pairs
        self.eager_s = eager_s
        self.candidate_s = candidate_s
        self.reason = reason

    @property
    def ratio(self) -> float:
        """The candidate's speed as a multiple of eager's; 0 if there are no figures."""
        return self.eager_s / self.candidate_s if self.candidate_s > 0 else 0.0


class Interleaving:
    """The steps of a trial: whose turn it is, and their times. Each rank has one."""

    def __init__(self) -> None:
        self.turn = CANDIDATE
        """The mode in which the next step must run."""
        self.pairs: dict[int, Pair] = {}
        """(eager, candidate) in seconds, by their number from 0; pairs with a step that could not be compared are left
        out."""
        self.due = 0
        """Set by the step after which there may be a decision, to the number of pairs that were run; else 0."""
        self.steps = 0
        """All steps since the start."""
        self.spent_s = 0.0
        """The time that they took."""
        self.compiling = 0
        """The candidate's steps that compiled something."""
        self.reason = ""
        """Why no figures will come, "" if they may."""
        self.is_over = False
        self._half: dict[str, float] = {}
        self._is_spoiled = False

    def step_ended(self, took_s: float, *, is_clean: bool = True, compiled: bool = False) -> None:
        """A step has run as `turn` says and taken *took_s* seconds.

        *is_clean*: it may be compared. *compiled*: it compiled something, and is not compared.
        """
        self.due = 0
        if self.is_over:
            return
        number = self.steps - WARM_STEPS
        self.steps += 1
        self.spent_s += took_s
        self.compiling += compiled
        if self.compiling > MOST_COMPILING:
            self.reason = "step after step compiles anew: the shapes change too often"
        if number >= 0 and not self.is_over and number < 2 * DUE[-1]:
            self._add(number, took_s, is_clean=is_clean and not compiled)
        self.turn = _turn(number + 1)

    def _add(self, number: int, took_s: float, *, is_clean: bool) -> None:
        self._half[_turn(number)] = took_s
        self._is_spoiled = self._is_spoiled or not is_clean
        if number % 2 == 0:
            return
        if not self._is_spoiled:
            self.pairs[number // 2] = (self._half[EAGER], self._half[CANDIDATE])
        self._is_spoiled = False
        if number // 2 + 1 in DUE:
            self.due = number // 2 + 1

    def end(self) -> None:
        """The decision is made, here or on another rank."""
        self.is_over = True
        self.due = 0
        self.turn = EAGER


def _turn(number: int) -> str:
    """Return the mode of step *number*, from 0 at the first pair: eager, candidate, candidate, eager, and again."""
    if number < 0:
        return CANDIDATE
    return EAGER if number >= 2 * DUE[-1] or number % 4 in (0, 3) else CANDIDATE


class _Figures:
    """The figures of the *pairs* that can be compared, of *run* that were run."""

    def __init__(self, pairs: "Sequence[Pair]", run: int) -> None:
        self.count = len(pairs)
        self.is_last = run >= DUE[-1]
        """No more pairs will come."""
        self.eager_s = median([pair[0] for pair in pairs]) if self.count >= FEWEST_PAIRS else 0.0
        self.candidate_s = median([pair[1] for pair in pairs]) if self.count >= FEWEST_PAIRS else 0.0
        self.measured_s = sum(eager + candidate for eager, candidate in pairs)
        self.is_faster = self._is_faster(self.eager_s, self.candidate_s)
        """The candidate is faster, by the margin."""
        agreeing = sum(self._is_faster(*pair) == self.is_faster for pair in pairs)
        is_far = abs(self.candidate_s - self.eager_s * (1 - MARGIN)) > 2 * MARGIN * self.eager_s
        self.is_clear = is_far and agreeing >= self.count - self.count // 6
        """All pairs but one in six agree, and by more than the margin."""

    @staticmethod
    def _is_faster(eager_s: float, candidate_s: float) -> bool:
        return candidate_s < eager_s * (1 - MARGIN)


MORE, FASTER, STAYS_EAGER, TOO_FEW = "more pairs", "the faster", "eager", "eager, without figures"
# What follows from the figures: the first row that applies says it.
_DECISIONS: "tuple[tuple[Callable[[_Figures], bool], str], ...]" = (
    (lambda it: it.count < FEWEST_PAIRS and it.is_last, TOO_FEW),
    (lambda it: it.count < FEWEST_PAIRS, MORE),
    (lambda it: it.is_last and it.is_faster and it.measured_s < CLEAR_S, STAYS_EAGER),
    (lambda it: it.is_last, FASTER),
    (lambda it: it.measured_s > MOST_S, FASTER),
    (lambda it: it.count >= ENOUGH_PAIRS and it.measured_s >= ENOUGH_S, FASTER),
    (lambda it: it.candidate_s > max(it.eager_s * ENDLESS, ENDLESS_S), FASTER),
    (lambda it: it.count < CLEAR_PAIRS, MORE),
    (lambda it: it.candidate_s > it.eager_s * HOPELESS, FASTER),
    (lambda it: it.is_faster and it.measured_s < CLEAR_S, MORE),
    (lambda it: it.is_clear, FASTER),
    (lambda _: True, MORE),
)


def decide(pairs: "Iterable[Pair]", run: int) -> "TrialDecision | None":
    """Return what *pairs* of eager and candidate steps, in seconds, say, of *run* that were run; None: more are needed.

    After the last pair there is always a decision: eager, if too few could be compared.
    """
    figures = _Figures(list(pairs), run)
    decision = next(decision for applies, decision in _DECISIONS if applies(figures))
    if decision == MORE:
        return None
    return TrialDecision(
        keeps_candidate=decision == FASTER and figures.is_faster,
        pairs=figures.count,
        eager_s=figures.eager_s,
        candidate_s=figures.candidate_s,
        reason="too few steps could be compared" if decision == TOO_FEW else "",
    )


def slowest(ranks: "Sequence[Mapping[int, Pair]]") -> "list[Pair]":
    """Return the pairs that all *ranks* have, by their numbers: a step takes as long as on the slowest rank."""
    common = sorted(set(ranks[0]).intersection(*ranks))
    return [(max(pairs[number][0] for pairs in ranks), max(pairs[number][1] for pairs in ranks)) for number in common]


def cost_s(spent_s: float, steps: int, eager_s: float) -> float:
    """Return what a trial of *steps* steps that took *spent_s* has cost beyond as many eager steps; never below 0."""
    return max(0.0, spent_s - steps * eager_s)


def break_even_step(step: int, cost_s: float, eager_s: float, candidate_s: float) -> "int | None":
    """Return the step by which the candidate, kept from *step* on, has saved what the trial cost; None: never."""
    saved_s = eager_s - candidate_s
    return None if saved_s <= 0 else step + int(-(-cost_s // saved_s))


def median(values: "Sequence[float]") -> float:
    """Return the median of *values*, of which there is at least one."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
