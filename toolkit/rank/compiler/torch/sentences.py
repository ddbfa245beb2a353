"""Pure: the sentences of the log and of the job's page about what was compiled, and why."""

TYPE_CHECKING = False  # As typing's, without importing it.
if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..trial import TrialDecision

MESSAGE_CHARACTERS = 300


def decision_figures(candidate: str, eager: str, decision: "TrialDecision", names: "list[str]") -> str:
    """Return *decision* as a sentence with its figures. *candidate*, *eager*: the words for the two modes."""
    if decision.reason:
        return "%s: %s" % (eager, decision.reason)
    return "%s: %s: %s a step %s, %s %s (%.2f times as fast, %d pairs of steps)" % (
        candidate if decision.keeps_candidate else eager,
        join_names(names),
        format_step_time(decision.candidate_s),
        candidate,
        format_step_time(decision.eager_s),
        eager,
        decision.ratio,
        decision.pairs,
    )


def failed_pass(name: str, error: BaseException, *, compiled: bool, is_memory: bool) -> str:
    """Return why the module *name* cannot run compiled, or in bfloat16. *is_memory*: *error* is a lack of memory."""
    if is_memory:
        failure = "does not fit into memory compiled" if compiled else "does not fit into memory in bfloat16"
    else:
        failure = "does not compile" if compiled else "does not run in bfloat16"
    return "%s %s: %s: %s" % (name, failure, type(error).__name__, _first_paragraph(str(error)))


def over_budget(names: "list[str]", limit_s: float) -> str:
    """Return the sentence for compiling *names* that took longer than *limit_s*."""
    return "compiling %s takes longer than %g s and was given up (TOOLKIT_COMPILE_BUDGET_S)" % (
        join_names(names),
        limit_s,
    )


def no_code(names: "list[str]") -> str:
    """Return the sentence for modules *names* of which the compiler made no code."""
    return "torch's compiler finds nothing to compile in %s" % join_names(names)


def storm(code: str, guard: str, limit: int, advice: str) -> str:
    """Return the sentence for *code* that was compiled *limit* times, at last because *guard* failed."""
    text = "%s was compiled %d times, torch's limit, and runs eagerly for what comes next; the last reason: %s. %s"
    return text % (code, limit, guard, advice)


def format_step_time(seconds: float) -> str:
    """Return *seconds* as text: 0.0182 as "18.2 ms"."""
    return "%.3g ms" % (seconds * 1000) if seconds < 0.1 else "%.1f ms" % (seconds * 1000)


def join_names(names: "Iterable[str]") -> str:
    """Return *names* for a sentence: "A", "A and B", "A, B and 3 more"."""
    all_names = list(names)
    if len(all_names) > 3:
        return "%s and %d more" % (", ".join(all_names[:2]), len(all_names) - 2)
    return " and ".join(all_names)


def _first_paragraph(message: str) -> str:
    """Return the first lines of *message* as one: torch puts the cause into the second, and advice behind a gap."""
    head = message.strip().split("\n\n")[0]
    return " ".join(line.strip() for line in head.splitlines())[:MESSAGE_CHARACTERS]
