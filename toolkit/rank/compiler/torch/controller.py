"""Decides, step by step, how the models that train run: what is found, tried, kept, and said of it.

    observing: the first two steps show the modules that train
    a trial of bfloat16, then one of compiled code, if the job asks for `auto`; the second has what the first one keeps
    settled: the steps run as they will to the end; their times and recompilations are noted

An optimizer's step ends a step. What a step runs as changes only between two steps.
"""

import atexit
import os
import sys
from _thread import get_ident
from time import monotonic

import torch

from ...mesh import measuring
from ..told import Told
from ..trial import CANDIDATE, WARM_STEPS, Decision, Turns, break_even_step, cost_s
from . import agreement, cache, finding, precision
from .agreement import Agreement, Alone, Consent
from .budget import Budget
from .counting import Compiles, advice
from .dump import Dump
from .slot import Slot, Watch, Way
from .step_ends import MainOptimizer, Steady, listed, milliseconds

TYPE_CHECKING = False  # As typing's, without importing it.
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

OBSERVED_STEPS = 2  # A loop with two optimizers (a GAN) has called all its modules by then.
# An optimizer that steps without a pass of the model since its last step does so for another group of parameters
# (DeepSpeed's ZeRO): the job's step goes on. So many times in a row, at most.
MOST_MORE_STEPS = 1_000
TELL_S = 10.0  # How often facts are written, at most.
MESSAGE_CHARACTERS = 300


class Controller:
    """The way of this process's steps.

    *asked*: as train/launchers/compiler_variables.py writes it. *own_cache*: TORCHINDUCTOR_CACHE_DIR of the script's
    environment.
    """

    def __init__(self, asked: "dict[str, Any]", own_cache: str) -> None:
        self._asked = asked
        self._own_cache = own_cache
        self._told = Told("torch")
        self._told.tell(compile=asked["compile"], autocast=asked["autocast"], reason="no model that trains was found")
        self._pid = os.getpid()
        self._finder = finding.Finder(self._broken, self._doubles)
        self._watch = Watch(self._failed)
        self._slots: list[Slot] = []
        self._compiles: Compiles | None = None
        self._dump: Dump | None = None
        self._optimizer = MainOptimizer()
        self._steady = Steady()
        self._thread = 0
        self._steps = 0
        self._more_steps = 0
        self._others_before = 0
        self._since_s = 0.0
        self._compiled_before = 0
        self._pending: list[str] = []  # Trials that are to come: "autocast", "compile".
        self._trial = ""
        self._base = self._candidate = Way()
        self._turns = Turns()
        self._agreement: Agreement | Alone = Alone()
        self._consent: Consent | None = None
        self._refusing: list[Agreement] = []  # They tell the other ranks, beside the training.
        self._failure = ""
        self._step_ended: Callable[[], None] = self._observed
        self._tells_next_s = 0.0
        self._announces = False

    def start(self) -> None:
        """Watch the first steps."""
        self._finder.start()

    def optimizer_stepped(self, optimizer: object, *_: object) -> None:
        """An optimizer has stepped: torch's hook for all of them."""
        if self._thread != get_ident():
            if self._thread or os.getpid() != self._pid:
                return
            self._thread = get_ident()
        if self._optimizer.counts(id(optimizer)):
            self._more_steps = 0 if self._watch.calls or not self._slots else self._more_steps + 1
            if 0 < self._more_steps <= MOST_MORE_STEPS:
                return
            self._steps += 1
            try:
                self._step_ended()
            except Exception as error:  # noqa: BLE001 - the script goes on without
                self._broken(error)

    def _broken(self, error: Exception) -> None:
        """An error of this package's own: leave everything as the script wrote it."""
        self._step_ended = lambda: None
        self._finder.stop()
        self._finder.stop_gradients()
        self._remove()
        measuring.end()
        text = "the compiler's hook failed: %s: %s" % (type(error).__name__, error)
        self._told.tell(state="eager", reason=text, autocast_state="off")
        sys.stderr.write("[toolkit] compiler: eager: %s\n" % text)

    # --- observing

    def _observed(self) -> None:
        if self._steps < OBSERVED_STEPS and not self._finder.refusal:
            return
        self._finder.stop()
        modules = self._finder.modules
        self._watch.differentiates_inputs = self._finder.differentiates_inputs
        refusal = self._finder.refusal or _foreign()
        atexit.register(self._end)
        if refusal or not modules:
            self._leave_alone(refusal or "no module that trains was seen in the first steps")
            return
        self._prepare(modules)
        self._next_trial()

    def _leave_alone(self, reason: str) -> None:
        for what in ("autocast", "compile"):
            if self._asked[what] != "off":
                self._refuse_for_all(what, reason)
        self._told.tell(
            state="eager", reason=reason, autocast_reason=reason if self._asked["autocast"] != "off" else ""
        )
        self._say("eager: %s" % reason)
        self._settle()

    def _prepare(self, modules: "list[torch.nn.Module]") -> None:
        """Decide what is on without a trial, and what is tried."""
        device = next(modules[0].parameters()).device.type
        self._told.tell(modules=finding.names(modules), state="eager", reason="")
        self._slots = [Slot(each, self._watch) for each in modules]
        for slot in self._slots:
            slot.install()
        bf16 = self._wants("autocast", precision.refusal(modules, autocasts=self._finder.autocasts))
        compiled = self._wants("compile", cache.missing_compiler(device, os.environ))
        if self._asked["compile"] != "off" and (compiled or "compile" in self._pending):
            self._open_compiler(device)
        self._told.tell(autocast_state="bf16" if bf16 else "off")
        # Code is compiled once: for the precision that is kept.
        self._base = Way(bf16=bf16)
        if compiled and "autocast" in self._pending:
            self._compiles_at_last = True
        elif compiled:
            self._base = Way(bf16=bf16, compiled=True)

    _compiles_at_last = False

    def _wants(self, what: str, refusal: str) -> bool:
        """Return True if *what* is on without a trial; note one that is to come. *refusal*: why it cannot be."""
        asked = self._asked[what]
        name = "reason" if what == "compile" else "autocast_reason"
        if asked == "off":
            return False
        if not refusal and asked == "auto":
            refusal = agreement.missing(os.environ)
        if refusal:
            self._told.tell(**{name: refusal})
            self._say("%s: %s" % ("eager" if what == "compile" else "no bfloat16", refusal))
            self._refuse_for_all(what, refusal)
            return False
        if asked == "auto":
            self._pending.append(what)
            return False
        return True

    def _refuse_for_all(self, what: str, reason: str) -> None:
        """Tell the other ranks, which may try *what*, that this one will not: else they wait for it."""
        if not agreement.is_shared():
            return
        if self._asked[what] == "auto":
            refusing = Agreement(what)
        elif what == "compile":
            refusing = Consent("consent")
        else:
            return  # Nothing is agreed on: bfloat16 of one rank does not concern the others' gradients.
        refusing.refuse(reason)
        self._refusing.append(refusing)

    def _open_compiler(self, device: str) -> None:
        folder, problem = self._own_cache, ""
        if self._asked["debug"]:
            self._dump = Dump(os.path.join(self._asked["dump"], "rank-%s" % os.environ.get("RANK", "0")))
            self._dump.start()
            self._told.tell(dump=self._dump.folder)
        elif not folder:
            folder, problem = cache.use(self._asked["cache"], torch, device, os.environ)
        if problem:
            self._say(problem)
        self._told.tell(cache=folder)
        limit_s = self._asked.get("budget_s")
        self._watch.budget = None if limit_s is None else Budget(limit_s)
        self._compiles = Compiles(self._watch.budget)
        self._compiles.start()
        import torch._functorch.config as graphs

        # A backward pass that does not compile must fail where the slot can still run the module eagerly.
        if hasattr(graphs, "force_non_lazy_backward_lowering"):
            graphs.force_non_lazy_backward_lowering = True
        # Else backward(retain_graph=True) fails.
        if hasattr(graphs, "donated_buffer"):
            graphs.donated_buffer = False
        import torch._dynamo.config as guards

        # Else a hook that the script registers on an inner module after the first compiled step is never called, and
        # one that it removes goes on.
        if hasattr(guards, "skip_nnmodule_hook_guards"):
            guards.skip_nnmodule_hook_guards = False

    # --- trials

    def _next_trial(self) -> None:
        if not self._pending:
            self._settle()
            return
        self._trial = self._pending.pop(0)
        self._base = Way(compiled=self._base.compiled, bf16=self._base.bf16)
        of_compiler = self._trial == "compile"
        self._candidate = Way(compiled=self._base.compiled or of_compiler, bf16=self._base.bf16 or not of_compiler)
        self._turns = Turns()
        self._failure = ""
        self._agreement = Agreement(self._trial) if agreement.is_shared() else Alone()
        measuring.begin()
        self._told.tell(**{"state" if of_compiler else "autocast_state": "trial"})
        self._step_ended = self._tried
        self._begin_step(self._candidate)

    def _begin_step(self, way: Way) -> None:
        watch = self._watch
        watch.way = way
        watch.calls = watch.others = 0
        self._compiled_before = 0 if self._compiles is None else self._compiles.count
        self._wait_for_devices()
        self._since_s = monotonic()

    def _tried(self) -> None:
        self._wait_for_devices()
        took_s = monotonic() - self._since_s
        turns, watch = self._turns, self._watch
        compiled = self._compiles is not None and self._compiles.count != self._compiled_before
        # Passes without gradients in each step (pseudo-labels, a GAN's generator) are in both ways alike.
        is_alike = watch.others == self._others_before
        self._others_before = watch.others
        is_clean = watch.calls > 0 and is_alike and not torch.autograd._profiler_enabled()  # type: ignore[attr-defined]
        turns.step_ended(took_s, is_clean=is_clean, compiled=compiled)
        if self._trial == "compile" and turns.steps == WARM_STEPS and not self._failure and self._has_no_code():
            self._failure = self._nothing_to_compile()
        if not self._failure and self._is_over_budget():
            self._failure = self._over_budget()
        if self._failure or turns.reason:
            self._agreement.refuse(self._failure or turns.reason)
        elif turns.due:
            self._agreement.offer(turns.pairs, turns.due, took_s)
        decision = self._agreement.decision()
        if decision is not None:
            self._decide(decision)
            return
        is_candidate = turns.turn == CANDIDATE and not self._failure
        self._begin_step(self._candidate if is_candidate else self._base)

    def _decide(self, decision: Decision) -> None:
        turns = self._turns
        turns.end()
        measuring.end()
        if self._trial == "compile":
            self._close_budget()
        cost = cost_s(turns.spent_s, turns.steps, decision.eager_s) if decision.eager_s else turns.spent_s
        if decision.kept:
            self._base = self._candidate
        trial = None
        if decision.pairs:
            trial = {
                "pairs": decision.pairs,
                "eager_step_ms": round(decision.eager_s * 1000, 3),
                "candidate_step_ms": round(decision.candidate_s * 1000, 3),
                "kept": decision.kept,
                "cost_s": round(cost, 3),
            }
        if self._trial == "compile":
            paid = break_even_step(self._steps, cost, decision.eager_s, decision.candidate_s) if decision.kept else None
            text = _figures("compiled", "eager", decision, finding.names(self._finder.modules))
            self._told.tell(
                state="compiled" if decision.kept else "eager",
                reason=text,
                trial=trial,
                break_even_step=paid,
                **self._facts(),
            )
            compiles = self._compiles
            more = "the trial cost %.1f s" % cost
            if compiles is not None and compiles.count:
                more += ", %.1f s of it compiling" % compiles.seconds
            if paid is not None:
                more += "; it pays off by step %d" % paid
        else:
            text = _figures("bfloat16", "float32", decision, finding.names(self._finder.modules))
            self._told.tell(
                autocast_state="bf16" if decision.kept else "off", autocast_reason=text, autocast_trial=trial
            )
            more = "the trial cost %.1f s" % cost
        self._say("%s; %s" % (text, more))
        self._next_trial()

    def _failed(self, module: "torch.nn.Module", way: Way, error: BaseException) -> None:
        """A pass of *module* could not run as *way*, and ran as the script wrote it."""
        what = "does not compile" if way.compiled else "does not run in bfloat16"
        if isinstance(error, torch.OutOfMemoryError):
            what = "does not fit into memory compiled" if way.compiled else "does not fit into memory in bfloat16"
        text = "%s %s: %s: %s" % (finding.names([module])[0], what, type(error).__name__, _first_paragraph(str(error)))
        if way.compiled and self._is_over_budget():
            text = self._over_budget()
        if self._dump is not None and way.compiled:
            self._dump.failed(text, error)
        if self._step_ended == self._tried and way is self._candidate:
            self._failure = text
            self._watch.way = self._base
            return
        # After the decision, or without a trial.
        self._base = Way(compiled=False, bf16=way.bf16 and way.compiled)
        self._watch.way = self._base
        self._announces = False
        self._told.tell(
            state="eager", reason=text, autocast_state="bf16" if self._base.bf16 else "off", **self._facts()
        )
        if self._consent is not None and way.compiled:
            self._consent.refuse(text)  # The line comes with the decision of all ranks.
        else:
            sys.stderr.write("[toolkit] compiler: eager from step %d on: %s\n" % (self._steps + 1, text))
        if self._base.is_plain:
            self._remove()

    def _doubles(self) -> None:
        """The script takes gradients of gradients, later than in the first steps: the next steps are eager.

        This step goes on as the script asks for; it fails if the pass that it differentiates was compiled.
        """
        if self._thread != get_ident() or os.getpid() != self._pid:
            return
        if self._step_ended == self._tried and self._trial == "compile":
            self._failure = self._failure or finding.LATE_DOUBLE
            self._watch.way = self._base
        elif self._base.compiled:
            if self._consent is not None:
                self._consent.refuse(finding.LATE_DOUBLE)  # The line comes with the decision of all ranks.
            else:
                self._say("eager from step %d on: %s" % (self._steps + 1, finding.LATE_DOUBLE))
            self._go_eager(finding.LATE_DOUBLE)

    # --- settled

    def _settle(self) -> None:
        """Run the steps as decided from here on."""
        if self._compiles_at_last:
            self._compiles_at_last = False
            self._base = Way(compiled=True, bf16=self._base.bf16)
        self._step_ended = self._ran
        self._watch.is_trial = self._base.compiled and self._asked["compile"] == "on"  # The first step may still fail.
        self._announces = self._base.compiled and self._asked["compile"] == "on"
        if self._announces and agreement.is_shared():
            self._consent = Consent("consent")
        if self._base.is_plain:
            self._remove()
        if self._base.compiled:
            self._told.tell(state="compiled")
        if self._base.bf16 and self._asked["autocast"] == "bf16":
            self._told.tell(autocast_state="bf16", autocast_reason="asked for")
        self._begin_step(self._base)

    def _remove(self) -> None:
        for slot in self._slots:
            slot.remove()
        self._slots = []
        self._finder.modules = []  # The script may drop its model.
        self._finder.stop_gradients()

    def _ran(self) -> None:
        now_s = monotonic()
        if self._watch.calls:
            self._watch.is_trial = False
            self._watch.calls = 0
        compiles = self._compiles
        if compiles is not None and compiles.count != self._compiled_before:
            self._compiled_before = compiles.count
            self._recompiled(compiles)
        else:
            self._steady.add(now_s - self._since_s)
            if self._announces:
                self._announce(now_s - self._since_s)
        if self._consent is not None:
            self._heed(self._consent)
        if now_s > self._tells_next_s:
            self._tells_next_s = now_s + TELL_S
            self._told.tell(**self._facts())
        self._since_s = now_s

    def _announce(self, took_s: float) -> None:
        """Say once, after the first step that compiled nothing, what compiling took; with several ranks once all of
        them run compiled code. *took_s*: the step."""
        self._announces = False
        self._close_budget()
        reason = self._nothing_to_compile() if self._has_no_code() else ""
        if self._consent is not None and reason:
            self._consent.refuse(reason)
        elif self._consent is not None:
            self._consent.consent(took_s)
        elif reason:
            self._say("eager: %s" % reason)
            self._go_eager(reason)
        else:
            self._say_compiled()

    def _heed(self, consent: Consent) -> None:
        """Go eager if another rank has to, so that all run the same."""
        decision = consent.decision()
        if decision is None:
            return
        self._consent = None
        if decision.kept:
            if self._base.compiled:
                self._say_compiled()
            return
        self._say("eager: %s" % decision.reason)
        self._go_eager(decision.reason)

    def _say_compiled(self) -> None:
        assert self._compiles is not None
        found = finding.names(self._finder.modules)
        text = "compiled %s in %.1f s, as asked for" % (listed(found), self._compiles.seconds)
        self._told.tell(reason=text, **self._facts())
        self._say(text)

    def _is_over_budget(self) -> bool:
        return self._watch.budget is not None and self._watch.budget.is_over

    def _over_budget(self) -> str:
        assert self._watch.budget is not None
        names = listed(finding.names(self._finder.modules))
        return "compiling %s takes longer than %g s and was given up (TOOLKIT_COMPILE_BUDGET_S)" % (
            names,
            self._watch.budget.limit_s,
        )

    def _close_budget(self) -> None:
        """What is compiled from here on, for new shapes, is not bounded."""
        if self._watch.budget is not None:
            self._watch.budget.close()

    def _go_eager(self, reason: str) -> None:
        self._announces = False
        self._base = Way(bf16=self._base.bf16)
        self._watch.way = self._base
        self._told.tell(state="eager", reason=reason, **self._facts())
        if self._base.is_plain:
            self._remove()

    def _has_no_code(self) -> bool:
        """True if the compiler has looked at the modules and made nothing: all steps would be eager ones."""
        return self._compiles is not None and self._compiles.facts()["graphs"] == 0

    def _nothing_to_compile(self) -> str:
        return "torch's compiler finds nothing to compile in %s" % listed(finding.names(self._finder.modules))

    def _recompiled(self, compiles: Compiles) -> None:
        if not self._base.compiled:
            return
        text = "%s was compiled %d times, torch's limit, and runs eagerly for what comes next; the last reason: %s. %s"
        for what, why, limit in compiles.storms():
            self._say(text % (what, limit, why, advice(why)))

    def _facts(self) -> "dict[str, Any]":
        found: dict[str, Any] = {"steps": self._steps, "steady_step_ms": self._steady.step_ms()}
        if self._compiles is not None:
            found.update(self._compiles.facts())
        return found

    def _end(self) -> None:
        if os.getpid() != self._pid:
            return
        if self._compiles is not None:
            self._recompiled(self._compiles)  # Steps of an optimizer that does not count are not looked at before.
        facts = self._facts()
        if self._step_ended == self._tried:
            text = "after %d steps of the job" % self._steps
            if self._failure:
                text += "; %s" % self._failure
            if self._compiles is not None and self._compiles.count:
                text += "; compiling took %.1f s" % self._compiles.seconds
            facts["reason" if self._trial == "compile" else "autocast_reason"] = text
            self._say("the job ended before the trial did, %s" % text)
        self._told.tell(**facts)
        if self._dump is not None:
            self._dump.end()

    def _wait_for_devices(self) -> None:
        """GPUs work behind: a step has ended when they have done it."""
        if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.synchronize()

    def _say(self, text: str) -> None:
        """Write one line, in the first rank: all decide the same."""
        if _speaks():
            sys.stderr.write("[toolkit] compiler: %s\n" % text)


def _speaks() -> bool:
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return bool(distributed.get_rank() == 0)
    return os.environ.get("RANK", "0") == "0"


def _foreign() -> str:
    """Return what in this process takes compiling into its own hands, "" for nothing."""
    xla = sys.modules.get("torch_xla")
    if xla is not None and "/compat/torch_xla/" not in (getattr(xla, "__file__", None) or ""):
        return "torch_xla compiles by itself"
    if "smdistributed.modelparallel" in sys.modules:
        return "model parallel partitions the model, and runs parts of it by itself"
    return ""


def _figures(what: str, other: str, decision: Decision, names: "list[str]") -> str:
    """Return the decision as a sentence with its figures."""
    if decision.reason:
        return "%s: %s" % (other, decision.reason)
    kept = what if decision.kept else other
    return "%s: %s: %s a step %s, %s %s (%.2f times as fast, %d pairs of steps)" % (
        kept,
        listed(names),
        milliseconds(decision.candidate_s),
        what,
        milliseconds(decision.eager_s),
        other,
        decision.ratio,
        decision.pairs,
    )


def _first_paragraph(message: str) -> str:
    """Return the first lines of *message* as one: torch puts the cause into the second, and advice behind a gap."""
    head = message.strip().split("\n\n")[0]
    return " ".join(line.strip() for line in head.splitlines())[:MESSAGE_CHARACTERS]
