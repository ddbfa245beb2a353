"""Builds the section "compiler": the decision and its reason, the trial's figures, compilations, the steady step."""

from collections.abc import Callable, Iterable, Sequence

from toolkit.commands.jobs.data import JobData
from toolkit.commands.report.model import Block, Cell, ColumnSpec, Table, Tone, Words, make_table
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
    compilations = read_compilations(material.job)
    if not compilations:
        return []
    blocks: list[Block] = [
        *_build_decisions(compilations),
        _build_hosts_table(compilations),
        _build_times_table(compilations),
    ]
    trials = tuple(_list_trials(compilations))
    if trials:
        blocks.append(_build_trial_table(trials))
    recompilations = tuple(_list_recompilations(compilations))
    if recompilations:
        blocks.append(_build_recompilation_table(recompilations))
    return blocks + _list_folders(compilations)


def read_compilations(job: JobData) -> list[tuple[str, Compilation]]:
    """Return the names of the hosts of *job* that reported their compiler, each with its report."""
    outcomes = ((host.name, host.outcome) for host in job.hosts)
    return [(name, outcome.compiler) for name, outcome in outcomes if outcome is not None and outcome.compiler]


def describe_decision(compilation: Compilation) -> str:
    """Return the compiler's decision and its reason, in a sentence or two."""
    if compilation.compile == "off":
        return _join_reason("off", compilation.reason)
    return _join_reason(STATES[compilation.state], compilation.reason)


def describe_autocast(compilation: Compilation) -> str:
    """Return the decision on bfloat16 and its reason."""
    state = {"bf16": "bfloat16", "off": "off", "trial": STATES["trial"]}[compilation.autocast_state]
    return _join_reason(state, compilation.autocast_reason)


def _join_reason(state: str, reason: str) -> str:
    return f"{state}: {reason}" if reason and reason != state else state


def count_recompilations(compilation: Compilation) -> int:
    """Return how many times code was compiled anew."""
    return sum(recompilation.count for recompilation in compilation.recompilations)


def _build_decisions(compilations: Sequence[tuple[str, Compilation]]) -> list[Block]:
    """Return each decision once, with the hosts where they differ."""
    blocks: list[Block] = []
    for name, text, tone in (
        ("Compiler", describe_decision, _decision_tone),
        ("Autocast", describe_autocast, _autocast_tone),
    ):
        if name == "Autocast" and all(compilation.autocast == "off" for _, compilation in compilations):
            continue
        by_text: dict[str, list[str]] = {}
        for host, compilation in compilations:
            by_text.setdefault(text(compilation), []).append(host)
        for decision, hosts in by_text.items():
            host_names = "" if len(by_text) == 1 else f"{', '.join(hosts)}: "
            compilation = next(compilation for _, compilation in compilations if text(compilation) == decision)
            blocks.append(Words(name=name, text=host_names + decision, tone=tone(compilation)))
    return blocks


def _decision_tone(compilation: Compilation) -> Tone:
    if compilation.compile == "off":
        return "plain"
    return {"compiled": "good", "eager": "plain"}.get(compilation.state, "warn")  # type: ignore[return-value]


def _autocast_tone(compilation: Compilation) -> Tone:
    return {"bf16": "good", "off": "plain"}.get(compilation.autocast_state, "warn")  # type: ignore[return-value]


def _build_hosts_table(compilations: Sequence[tuple[str, Compilation]]) -> Table:
    """Return the counts of each host, without columns that no host has."""
    columns: tuple[tuple[ColumnSpec, Quantity], ...] = (
        (("rank", "", "The host's lowest rank that reported."), lambda did: did.rank),
        ("framework", lambda did: did.framework),
        ("modules", lambda did: ", ".join(did.modules) or None),
        (
            ("compilations", "", "Compiled frames (PyTorch) or functions (TensorFlow)."),
            lambda did: did.compilations,
        ),
        ("graphs", lambda did: did.graphs),
        ("graph breaks", lambda did: did.graph_breaks),
        ("recompilations", count_recompilations),
        ("cache hits", lambda did: did.cache_hits),
    )
    return _build_host_table("compiler-hosts", "What was compiled", columns, compilations)


def _build_times_table(compilations: Sequence[tuple[str, Compilation]]) -> Table:
    columns: tuple[tuple[ColumnSpec, Quantity], ...] = (
        (("compiling", "s"), lambda did: did.compile_s),
        ("steps", lambda did: did.steps),
        (("steady step", "ms", STEADY), lambda did: did.steady_step_ms),
        (
            ("break-even step", "", BREAK_EVEN),
            lambda did: did.break_even_step or "not reached, or not known",
        ),
    )
    return _build_host_table("compiler-times", "Times", columns, compilations)


def _build_host_table(
    name: str,
    title: str,
    columns: Sequence[tuple[ColumnSpec, Quantity]],
    compilations: Sequence[tuple[str, Compilation]],
) -> Table:
    known_columns = [
        (column, quantity)
        for column, quantity in columns
        if any(quantity(compilation) is not None for _, compilation in compilations)
    ]
    return make_table(
        name,
        title,
        ("host", *(column for column, _ in known_columns)),
        ((host, *(quantity(compilation) for _, quantity in known_columns)) for host, compilation in compilations),
    )


def _list_trials(compilations: Iterable[tuple[str, Compilation]]) -> Iterable[tuple[str, str, Trial]]:
    for host, compilation in compilations:
        for candidate, trial in (("compiled", compilation.trial), ("bfloat16", compilation.autocast_trial)):
            if trial is not None:
                yield host, candidate, trial


def _build_trial_table(trials: Sequence[tuple[str, str, Trial]]) -> Table:
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (
            host,
            candidate,
            trial.pairs,
            trial.eager_step_ms,
            trial.candidate_step_ms,
            round(trial.eager_step_ms / trial.candidate_step_ms, 3) if trial.candidate_step_ms else None,
            "yes" if trial.kept else "no",
            trial.cost_s,
        )
        for host, candidate, trial in trials
    )
    return make_table(
        "compiler-trials",
        "Trials on the job's own steps",
        (
            "host",
            "tried",
            ("pairs of steps", "", TRIAL),
            ("step without", "ms"),
            ("step with", "ms"),
            ("times as fast", "", "step without / step with"),
            "kept",
            ("cost", "s", "Beyond as many steps without, compiling included."),
        ),
        rows,
    )


def _list_recompilations(compilations: Iterable[tuple[str, Compilation]]) -> Iterable[tuple[Cell, ...]]:
    for host, compilation in compilations:
        for recompilation in compilation.recompilations:
            yield host, recompilation.function, recompilation.reason, recompilation.count


def _build_recompilation_table(rows: Sequence[tuple[Cell, ...]]) -> Table:
    often = any(isinstance(row[-1], int) and row[-1] >= MANY for row in rows)
    return make_table(
        "compiler-recompilations",
        "Compiled again",
        (
            "host",
            "what",
            "guard that failed",
            "times",
        ),
        rows,
        note=f"Each new shape costs a compilation. {OFTEN}" if often else "",
    )


def _list_folders(compilations: Sequence[tuple[str, Compilation]]) -> list[Block]:
    """Return where the compiled code is kept for the next job, and what the compiler wrote for debugging."""
    blocks: list[Block] = []
    for name, folders in (
        ("Compiled code is kept in", {compilation.cache for _, compilation in compilations if compilation.cache}),
        ("The compiler's own files are in", {compilation.dump for _, compilation in compilations if compilation.dump}),
    ):
        if folders:
            blocks.append(Words(name=name, text=", ".join(sorted(folders))))
    return blocks
