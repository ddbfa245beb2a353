"""The state of the controller after all trials: the steps run as decided to the end."""

from time import monotonic

from . import agreement, module_finder, sentences
from .agreement import Vote
from .slot import Mode
from .state import TrainingState

TYPE_CHECKING = False  # As typing's, without importing it.
if TYPE_CHECKING:
    from .training import Training

WRITE_S = 10.0  # How often facts are written, at most.


class SettledState(TrainingState):
    """The steps run as decided; their times and recompilations are noted.

    Where compiled code is asked for without a trial, all ranks vote after their first compiled steps: if it fails on
    one of them, all run eagerly.
    """

    def __init__(self, training: "Training") -> None:
        super().__init__(training)
        is_unproven = training.mode.compiled and training.settings["compile"] == "on"
        self._slot_state = training.slot_state
        self._slot_state.is_trial = is_unproven  # The first step may still fail.
        self._awaits_first_code = is_unproven
        self._vote = Vote() if is_unproven and agreement.is_shared() else None
        self._add_step_time = training.steady.add
        self._compiles = training.compiles
        self._compile_count = training.compile_count
        self._writes_next_s = 0.0
        self._start_s = 0.0
        self._begin()

    def step_ended(self) -> "TrainingState":
        now_s = monotonic()
        slot_state = self._slot_state
        if slot_state.calls:
            slot_state.is_trial = False
            slot_state.calls = 0
        compiles = self._compiles
        if compiles is not None and compiles.count != self._compile_count:
            self._compile_count = compiles.count
            self._training.log_storms()
        else:
            self._add_step_time(now_s - self._start_s)
            if self._awaits_first_code:
                self._judge_code(now_s - self._start_s)
        if self._vote is not None:
            self._follow_vote(self._vote)
        if now_s > self._writes_next_s:
            self._writes_next_s = now_s + WRITE_S
            self._training.facts_file.write(**self._training.measured_facts())
        self._start_s = now_s
        return self

    def pass_failed(self, mode: Mode, reason: str) -> None:
        self._awaits_first_code = False
        if self._vote is not None and mode.compiled:
            self._fall_back(mode, reason)
            self._vote.refuse(reason)  # The line comes with the decision of all ranks.
        else:
            super().pass_failed(mode, reason)

    def second_gradients_taken(self) -> None:
        if self._vote is not None and self._training.mode.compiled:
            self._vote.refuse(module_finder.LATE_DOUBLE)  # The line comes with the decision of all ranks.
            self._run_eagerly(module_finder.LATE_DOUBLE)
        else:
            self._awaits_first_code = False
            super().second_gradients_taken()

    def _begin(self) -> None:
        training = self._training
        mode = training.mode
        if mode.is_plain:
            training.remove_slots()
        if mode.compiled:
            training.facts_file.write(state="compiled")
        if mode.bf16 and training.settings["autocast"] == "bf16":
            training.facts_file.write(autocast_state="bf16", autocast_reason="asked for")
        self._start_s = training.begin_step(mode)

    def _judge_code(self, took_s: float) -> None:
        """Log once, after the first step that compiled nothing, what compiling took; with several ranks once all of
        them run compiled code. *took_s*: the step."""
        self._awaits_first_code = False
        self._training.close_budget()
        reason = self._training.no_code_reason()
        if self._vote is not None and reason:
            self._vote.refuse(reason)
        elif self._vote is not None:
            self._vote.agree(took_s)
        elif reason:
            self._training.log_line("eager: %s" % reason)
            self._run_eagerly(reason)
        else:
            self._log_compiled()

    def _follow_vote(self, vote: Vote) -> None:
        """Run eagerly if another rank has to, so that all run the same."""
        decision = vote.decision()
        if decision is None:
            return
        self._vote = None
        if decision.keeps_candidate:
            if self._training.mode.compiled:
                self._log_compiled()
            return
        self._training.log_line("eager: %s" % decision.reason)
        self._run_eagerly(decision.reason)

    def _run_eagerly(self, reason: str) -> None:
        self._awaits_first_code = False
        self._training.run_eagerly(reason, bf16=self._training.mode.bf16)

    def _log_compiled(self) -> None:
        training = self._training
        assert training.compiles is not None
        names = sentences.join_names(training.class_names())
        text = "compiled %s in %.1f s, as asked for" % (names, training.compiles.seconds)
        training.facts_file.write(reason=text, **training.measured_facts())
        training.log_line(text)
