"""A job that asked for a compiler: what was decided and why, the trial's figures, compilations, the steady step."""

from collections.abc import Callable, Iterable, Sequence

from toolkit.commands.jobs.data import JobData
from toolkit.commands.report.model import Block, Cell, Column, Table, Tone, Words
from toolkit.commands.report.sections.material import Material
from toolkit.job.compilation import Compilation, Trial

STATES = {
    "compiled": "compiled",
    "eager": "not compiled",
    "trial": "the job ended before the trial did",
    "nothing": "no model that trains was found",
}
MANY = 8  # As torch's recompile_limit (torch/_dynamo/config.py, 2.13): from there on it gives up.
OFTEN = (
    "Give the model few shapes: drop_last=True (drop_remainder=True), padding to a fixed length, or dynamic shapes "
    "(torch.compile(dynamic=True))."
)
BREAK_EVEN = "The step by which compiling has paid off: the sum of the steps' times saved is that of the compiling."
STEADY = "The median step after the decision."
Quantity = Callable[[Compilation], Cell]
TRIAL = "Steps took turns, one without and one with it; of several ranks the slowest of each step counts."


def build_blocks(material: Material) -> list[Block]:
    """Return the blocks of the section "compiler"; none if no host reported what its compiler did."""
    found = read_compilations(material.job)
    if not found:
        return []
    made: list[Block] = [*_build_decisions(found), _build_hosts_table(found), _build_times_table(found)]
    trials = tuple(_list_trials(found))
    if trials:
        made.append(_build_trial_table(trials))
    again = tuple(_list_recompilations(found))
    if again:
        made.append(_build_recompilation_table(again))
    return made + _list_folders(found)


def read_compilations(job: JobData) -> list[tuple[str, Compilation]]:
    """Return what the compiler did on each host of *job* that reported it, with the host's name."""
    outcomes = ((host.name, host.outcome) for host in job.hosts)
    return [(name, outcome.compiler) for name, outcome in outcomes if outcome is not None and outcome.compiler]


def describe_decision(did: Compilation) -> str:
    """Return what a compiler decided and why, in one sentence or two."""
    if did.compile == "off":
        return _join_reason("off", did.reason)
    return _join_reason(STATES[did.state], did.reason)


def describe_autocast(did: Compilation) -> str:
    """Return what was decided of bfloat16 and why."""
    state = {"bf16": "bfloat16", "off": "off", "trial": STATES["trial"]}[did.autocast_state]
    return _join_reason(state, did.autocast_reason)


def _join_reason(state: str, reason: str) -> str:
    return f"{state}: {reason}" if reason and reason != state else state


def count_recompilations(did: Compilation) -> int:
    """Return how many times code was compiled anew."""
    return sum(each.count for each in did.recompilations)


def _build_decisions(found: Sequence[tuple[str, Compilation]]) -> list[Block]:
    """Return each decision once, with the hosts where they differ."""
    made: list[Block] = []
    for name, text, tone in (
        ("Compiler", describe_decision, _decision_tone),
        ("Autocast", describe_autocast, _autocast_tone),
    ):
        if name == "Autocast" and all(did.autocast == "off" for _, did in found):
            continue
        by_text: dict[str, list[str]] = {}
        for host, did in found:
            by_text.setdefault(text(did), []).append(host)
        for said, hosts in by_text.items():
            where = "" if len(by_text) == 1 else f"{', '.join(hosts)}: "
            did = next(did for _, did in found if text(did) == said)
            made.append(Words(name=name, text=where + said, tone=tone(did)))
    return made


def _decision_tone(did: Compilation) -> Tone:
    if did.compile == "off":
        return "plain"
    return {"compiled": "good", "eager": "plain"}.get(did.state, "warn")  # type: ignore[return-value]


def _autocast_tone(did: Compilation) -> Tone:
    return {"bf16": "good", "off": "plain"}.get(did.autocast_state, "warn")  # type: ignore[return-value]


def _build_hosts_table(found: Sequence[tuple[str, Compilation]]) -> Table:
    """Return the counts of each host, without columns that no host has."""
    columns: tuple[tuple[Column, Quantity], ...] = (
        (Column(name="rank", formula="The host's lowest rank that reported."), lambda did: did.rank),
        (Column(name="framework"), lambda did: did.framework),
        (Column(name="modules"), lambda did: ", ".join(did.modules) or None),
        (
            Column(name="compilations", formula="Compiled frames (PyTorch) or functions (TensorFlow)."),
            lambda did: did.compilations,
        ),
        (Column(name="graphs"), lambda did: did.graphs),
        (Column(name="graph breaks"), lambda did: did.graph_breaks),
        (Column(name="recompilations"), count_recompilations),
        (Column(name="cache hits"), lambda did: did.cache_hits),
    )
    return _build_host_table("compiler-hosts", "What was compiled", columns, found)


def _build_times_table(found: Sequence[tuple[str, Compilation]]) -> Table:
    columns: tuple[tuple[Column, Quantity], ...] = (
        (Column(name="compiling", unit="s"), lambda did: did.compile_s),
        (Column(name="steps"), lambda did: did.steps),
        (Column(name="steady step", unit="ms", formula=STEADY), lambda did: did.steady_step_ms),
        (
            Column(name="break-even step", formula=BREAK_EVEN),
            lambda did: did.break_even_step or "not reached, or not known",
        ),
    )
    return _build_host_table("compiler-times", "Times", columns, found)


def _build_host_table(
    name: str,
    title: str,
    columns: Sequence[tuple[Column, Quantity]],
    found: Sequence[tuple[str, Compilation]],
) -> Table:
    kept = [(column, of) for column, of in columns if any(of(did) is not None for _, did in found)]
    return Table(
        id=name,
        title=title,
        columns=(Column(name="host"), *(column for column, _ in kept)),
        rows=tuple((host, *(of(did) for _, of in kept)) for host, did in found),
    )


def _list_trials(found: Iterable[tuple[str, Compilation]]) -> Iterable[tuple[str, str, Trial]]:
    for host, did in found:
        for what, trial in (("compiled", did.trial), ("bfloat16", did.autocast_trial)):
            if trial is not None:
                yield host, what, trial


def _build_trial_table(trials: Sequence[tuple[str, str, Trial]]) -> Table:
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (
            host,
            what,
            trial.pairs,
            trial.eager_step_ms,
            trial.candidate_step_ms,
            round(trial.eager_step_ms / trial.candidate_step_ms, 3) if trial.candidate_step_ms else None,
            "yes" if trial.kept else "no",
            trial.cost_s,
        )
        for host, what, trial in trials
    )
    return Table(
        id="compiler-trials",
        title="Trials on the job's own steps",
        columns=(
            Column(name="host"),
            Column(name="tried"),
            Column(name="pairs of steps", formula=TRIAL),
            Column(name="step without", unit="ms"),
            Column(name="step with", unit="ms"),
            Column(name="times as fast", formula="step without / step with"),
            Column(name="kept"),
            Column(name="cost", unit="s", formula="Beyond as many steps without, compiling included."),
        ),
        rows=rows,
    )


def _list_recompilations(found: Iterable[tuple[str, Compilation]]) -> Iterable[tuple[Cell, ...]]:
    for host, did in found:
        for each in did.recompilations:
            yield host, each.function, each.reason, each.count


def _build_recompilation_table(rows: Sequence[tuple[Cell, ...]]) -> Table:
    often = any(isinstance(row[-1], int) and row[-1] >= MANY for row in rows)
    return Table(
        id="compiler-recompilations",
        title="Compiled again",
        columns=(
            Column(name="host"),
            Column(name="what"),
            Column(name="guard that failed"),
            Column(name="times"),
        ),
        rows=tuple(rows),
        note=f"Each new shape costs a compilation. {OFTEN}" if often else "",
    )


def _list_folders(found: Sequence[tuple[str, Compilation]]) -> list[Block]:
    """Return where the compiled code is kept for the next job, and what the compiler wrote for debugging."""
    made: list[Block] = []
    for name, folders in (
        ("Compiled code is kept in", {did.cache for _, did in found if did.cache}),
        ("The compiler's own files are in", {did.dump for _, did in found if did.dump}),
    ):
        if folders:
            made.append(Words(name=name, text=", ".join(sorted(folders))))
    return made
