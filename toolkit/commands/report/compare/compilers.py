"""Pure: sets the compilers of two or more jobs side by side."""

from collections.abc import Callable, Sequence

from toolkit.commands.report.compare.measured import ComparedJob
from toolkit.commands.report.model import Block, Cell, Words, make_table
from toolkit.commands.report.sections import compiler
from toolkit.job.compilation import Compilation

NOT_NATIVE = (
    "{job} was compiled itself, so that nothing here is of native steps. Run it with TOOLKIT_COMPILE=off (TensorFlow: "
    "jit_compile=False)."
)
KEPT_EAGER = "{job} ran without the compiler at its end: its times differ from {native}'s by the trial and by noise."

Quantity = Callable[[Compilation], Cell]
ROWS: tuple[tuple[str, Quantity], ...] = (
    ("framework", lambda did: did.framework),
    ("asked for", lambda did: did.compile),
    ("at the end", lambda did: did.state),
    ("compilations", lambda did: did.compilations),
    ("graphs", lambda did: did.graphs),
    ("recompilations", compiler.count_recompilations),
    ("compiling, s", lambda did: did.compile_s),
    ("trial, step without, ms", lambda did: did.trial.eager_step_ms if did.trial else None),
    ("trial, step with, ms", lambda did: did.trial.candidate_step_ms if did.trial else None),
    ("trial, cost, s", lambda did: did.trial.cost_s if did.trial else None),
    ("steady step, ms", lambda did: did.steady_step_ms),
    ("break-even step", lambda did: did.break_even_step),
    ("autocast", lambda did: did.autocast_state if did.autocast != "off" else None),
)


def build_blocks(native: ComparedJob, others: Sequence[ComparedJob]) -> list[Block]:
    """Return the compiler's report of the first host of each job that has one; none if no job asked for a compiler."""
    jobs = (native, *others)
    compilations = {
        job.label: next((compilation for _, compilation in compiler.read_compilations(job.job)), None) for job in jobs
    }
    if not any(compilations.values()):
        return []
    blocks: list[Block] = []
    for job in jobs:
        compilation = compilations[job.label]
        text = "no compiler was asked for." if compilation is None else compiler.describe_decision(compilation)
        blocks.append(Words(name=job.label, text=text))
    native_compilation = compilations[native.label]
    if native_compilation is not None and native_compilation.state == "compiled":
        blocks.append(Words(text=NOT_NATIVE.format(job=native.label), tone="warn"))
    for other in others:
        compilation = compilations[other.label]
        if compilation is not None and compilation.compile != "off" and compilation.state == "eager":
            blocks.append(Words(text=KEPT_EAGER.format(job=other.label, native=native.label), tone="warn"))
    rows = [
        (name, *(None if compilation is None else quantity(compilation) for compilation in compilations.values()))
        for name, quantity in ROWS
    ]
    columns = ("quantity", *compilations)
    known_rows = tuple(row for row in rows if any(cell is not None for cell in row[1:]))
    blocks.append(make_table("compilers", "Compilers", columns, known_rows))
    return blocks
