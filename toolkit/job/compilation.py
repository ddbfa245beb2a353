"""A job's settings for the compiler, and its results, which toolkit/rank/compiler writes as JSON in the ranks."""

from pathlib import Path
from typing import Annotated, Literal

from toolkit.records import Record, meaning

CompileMode = Literal["on", "auto", "off"]
AutocastMode = Literal["bf16", "auto", "off"]


class Compiler(Record, frozen=True, kw_only=True):
    """The settings of the compiler in a job's ranks."""

    compile: CompileMode = "off"
    """"on": without a trial; "auto": kept only if it is faster."""
    autocast: AutocastMode = "off"
    """"bf16": without a trial; "auto": kept only if it is faster."""
    budget_s: float | None = None
    """The most that compiling may take before it is given up; None: no limit."""
    cache: Path
    """The folder for compiled code, across jobs."""
    debug: bool = False
    """The compiler's own files are kept in `dump`."""
    dump: Path

    @property
    def is_on(self) -> bool:
        return self.compile != "off" or self.autocast != "off"


class Trial(Record, frozen=True, kw_only=True):
    """A comparison on the job's own steps, which took turns."""

    pairs: Annotated[int, meaning("how many steps of each kind were measured")]
    eager_step_ms: Annotated[float, meaning("milliseconds of a step without it; of several ranks the slowest counts")]
    candidate_step_ms: Annotated[float, meaning("milliseconds of a step with it; of several ranks the slowest counts")]
    kept: Annotated[bool, meaning("the candidate was faster, and stayed on")]
    cost_s: Annotated[
        float, meaning("seconds that the trial took beyond those of as many eager steps, compiling included")
    ]


class Recompilation(Record, frozen=True, kw_only=True):
    """Code that was compiled again."""

    function: Annotated[str, meaning("the module or function")]
    reason: Annotated[str, meaning("the guard that failed, with the shape that changed")]
    count: Annotated[int, meaning("how often")]


class Compilation(Record, frozen=True, kw_only=True):
    """The compiler's work in the lowest rank of the host."""

    framework: Annotated[Literal["torch", "tensorflow"], meaning("the framework whose compiler it is")]
    rank: Annotated[int, meaning("the rank that these figures are of: the host's lowest")] = 0
    compile: Annotated[CompileMode, meaning("TOOLKIT_COMPILE, as the job has it")] = "off"
    state: Annotated[
        Literal["compiled", "eager", "trial", "nothing"],
        meaning(
            "what the steps ran as at the end; trial: the job ended before a decision; nothing: no model that trains"
            " was found"
        ),
    ] = "nothing"
    reason: Annotated[str, meaning("why, in one sentence with the figures")] = ""
    modules: Annotated[tuple[str, ...], meaning("what was compiled, by class or path")] = ()
    compile_s: Annotated[float, meaning("seconds spent compiling")] = 0.0
    compilations: Annotated[int, meaning("how often code was compiled")] = 0
    graphs: Annotated[int | None, meaning("how many graphs came of it; null: not counted")] = None
    graph_breaks: Annotated[int | None, meaning("how many graph breaks; null: not counted")] = None
    recompilations: Annotated[tuple[Recompilation, ...], meaning("what was compiled again, and why")] = ()
    trial: Annotated[Trial | None, meaning("the comparison with eager steps; null: there was none")] = None
    steps: Annotated[int, meaning("the training steps that the rank had done")] = 0
    steady_step_ms: Annotated[float | None, meaning("milliseconds of the median step after the decision")] = None
    break_even_step: Annotated[
        int | None, meaning("the step by which compiling has paid off; null: it has not, or that is not known")
    ] = None
    autocast: Annotated[AutocastMode, meaning("TOOLKIT_AUTOCAST, as the job has it")] = "off"
    autocast_state: Annotated[
        Literal["bf16", "off", "trial"],
        meaning("what the steps ran with at the end; trial: the job ended before a decision"),
    ] = "off"
    autocast_reason: Annotated[str, meaning("why, in one sentence")] = ""
    autocast_trial: Annotated[Trial | None, meaning("the comparison with float32 steps; null: there was none")] = None
    cache: Annotated[str, meaning("the folder of compiled code that is kept across jobs")] = ""
    cache_hits: Annotated[int | None, meaning("how much of the code came from that folder; null: not counted")] = None
    dump: Annotated[str, meaning("the folder with the compiler's own files; empty unless debugging")] = ""
