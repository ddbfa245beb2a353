"""Brings the ranks to one decision, without a collective: ranks that step unequally, or end, cannot hang the others.

Each rank lays its pairs of step times into the store of the process group, through a connection of its own; rank 0
merges them and lays down a decision; whoever has waited too long lays down "eager". The store lets the first of them
win, and all ranks read the same. All of that is done by a thread: the thread that trains never waits, and goes on in
turns until the decision is there. Ranks may learn of it a step apart, which is harmless: the gradients that they
exchange are the same.
"""

import atexit
import json
import threading
from datetime import timedelta
from time import monotonic

import torch

from ...frameworks.torch.distributed import get_default_store
from ..trial import DUE, TrialDecision, decide, slowest

TYPE_CHECKING = False  # As typing's, without importing it.
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    Pairs = dict[int, tuple[float, float]]

PATIENCE_S = 60.0
PATIENCE_STEPS = 20
POLL_S = 0.05
_SIZES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")


class SoleRank:
    """The decision of a process without other ranks."""

    def __init__(self) -> None:
        self._decision: TrialDecision | None = None

    def offer(self, pairs: "Pairs", run: int, step_s: float) -> None:  # noqa: ARG002 - as RankAgreement's
        """Lay down *pairs*, of *run* that were run; a step takes *step_s* seconds."""
        self._decision = self._decision or decide(pairs.values(), run)

    def refuse(self, reason: str) -> None:
        """Lay down "eager", for *reason*."""
        self._decision = self._decision or _eager_decision(reason)

    def decision(self) -> "TrialDecision | None":
        """Return the decision of all ranks, None until there is one. It never waits."""
        return self._decision


class RankAgreement:
    """The decision of several ranks over a store. *name*: of the question, unique in the job."""

    def __init__(self, name: str) -> None:
        distributed = torch.distributed
        self._rank, self._size = distributed.get_rank(), distributed.get_world_size()
        self._store = _second_connection(get_default_store(), "toolkit/rank/compiler/%s" % name)
        self._decision: TrialDecision | None = None
        self._offers: dict[int, str] = {}
        self._refusal = ""
        self._deadline_s = float("inf")
        self._wakes = threading.Event()
        self._ends = False
        self._thread = threading.Thread(target=self._exchange, name="toolkit-compiler", daemon=True)
        self._thread.start()
        # A thread inside of torch must not meet the end of the interpreter.
        atexit.register(self._end)

    def offer(self, pairs: "Pairs", run: int, step_s: float) -> None:
        """As SoleRank's."""
        self._deadline_s = monotonic() + max(PATIENCE_S, PATIENCE_STEPS * step_s)
        self._offers[run] = json.dumps(pairs)
        self._wakes.set()

    def refuse(self, reason: str) -> None:
        """As SoleRank's."""
        self._refusal = self._refusal or reason
        self._wakes.set()

    def decision(self) -> "TrialDecision | None":
        """As SoleRank's."""
        return self._decision

    def _end(self) -> None:
        self._ends = True
        self._wakes.set()
        self._thread.join(2.0)

    def _exchange(self) -> None:
        pause_s = POLL_S * max(1.0, self._size / 64)
        due = self._merge_order()
        try:
            while self._decision is None and not self._ends:
                self._wakes.wait(pause_s)
                self._wakes.clear()
                self._step(due)
        except Exception as error:  # noqa: BLE001 - the store is gone, or is of an unknown kind
            self._decision = _eager_decision(
                "the ranks could not agree: %s" % (str(error).splitlines() or [type(error).__name__])[0]
            )

    def _step(self, due: "list[int]") -> None:
        store = self._store
        for run in sorted(self._offers):
            store.set("%d/%d" % (run, self._rank), self._offers.pop(run))
        if self._refusal:
            self._settle(_eager_decision("rank %d: %s" % (self._rank, self._refusal)))
        elif store.check(["decision"]):
            self._decision = _decode(store.get("decision"))
        elif self._rank == 0 and due and store.check(["%d/%d" % (due[0], rank) for rank in range(self._size)]):
            run = due.pop(0)
            offers = store.multi_get(["%d/%d" % (run, rank) for rank in range(self._size)])
            decision = self._merge(offers, run)
            if decision is not None:
                self._settle(decision)
        elif monotonic() > self._deadline_s:
            self._settle(self._unanswered())

    def _merge_order(self) -> "list[int]":
        """Return the numbers of the offers, in the order in which rank 0 merges them."""
        return list(DUE)

    def _merge(self, offers: "list[bytes]", run: int) -> "TrialDecision | None":
        """Return the decision that *offers* of all ranks give, None if more are needed."""
        return decide(slowest([_decode_pairs(offer) for offer in offers]), run)

    def _unanswered(self) -> TrialDecision:
        """Return the decision of a rank that has waited too long."""
        return _eager_decision("not all ranks step alike")

    def _settle(self, decision: TrialDecision) -> None:
        """Lay down *decision*, unless there is one; whichever is there counts."""
        self._decision = _decode(self._store.compare_set("decision", "", json.dumps(vars(decision))))


class Vote(RankAgreement):
    """Decides whether all ranks run compiled code that is asked for without a trial: not if it fails on one of them.

    Ranks that do not answer in time are taken for ranks on which it works.
    """

    def __init__(self) -> None:
        super().__init__("vote")

    def agree(self, step_s: float) -> None:
        """Lay down that compiled code runs here; a step takes *step_s* seconds."""
        self.offer({}, 0, step_s)

    def _merge_order(self) -> "list[int]":
        return [0]

    def _merge(self, offers: "list[bytes]", run: int) -> "TrialDecision | None":  # noqa: ARG002 - as RankAgreement's
        return self._unanswered()

    def _unanswered(self) -> TrialDecision:
        return TrialDecision(keeps_candidate=True, pairs=0, eager_s=0.0, candidate_s=0.0)


def missing_group(environ: "Mapping[str, str]") -> str:
    """Return why ranks cannot agree, "" if they can, or if there is only one."""
    if is_shared():
        return ""
    size = next((environ[name] for name in _SIZES if environ.get(name, "").isdigit()), "1")
    if size == "1":
        return ""
    return "the %s ranks have no process group of torch.distributed over which to agree" % size


def is_shared() -> bool:
    """True if this process is one of several ranks of torch.distributed."""
    distributed = torch.distributed
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


def _second_connection(store: "Any", prefix: str) -> "Any":
    """Return *store* below *prefix*, through a second connection where torch has that (from 2.9 on, seen in 2.13):
    no call of the script waits for it then."""
    if hasattr(store, "clone"):
        store = store.clone()
        store.set_timeout(timedelta(seconds=PATIENCE_S))
    return torch.distributed.PrefixStore(prefix, store)  # type: ignore[attr-defined]


def _eager_decision(reason: str) -> TrialDecision:
    return TrialDecision(keeps_candidate=False, pairs=0, eager_s=0.0, candidate_s=0.0, reason=reason)


def _decode(text: bytes) -> TrialDecision:
    return TrialDecision(**json.loads(text))


def _decode_pairs(text: bytes) -> "Pairs":
    return {int(number): (pair[0], pair[1]) for number, pair in json.loads(text).items()}
