"""What a job asks of the compiler, and what it did. toolkit/rank/compiler, in the ranks, writes the second as JSON."""

from pathlib import Path
from typing import Literal

from toolkit.records import Record

CompileMode = Literal["on", "auto", "off"]
AutocastMode = Literal["bf16", "auto", "off"]


class Compiler(Record, frozen=True, kw_only=True):
    """What the job asks for. `compile`, `autocast`: on or bf16 without a trial, auto: kept only if it is faster.

    `budget_s`: what compiling may take before it is given up, None: as long as it takes. `cache`: the folder for
    compiled code, across jobs. `debug`: the compiler's own files are kept in `dump`.
    """

    compile: CompileMode = "off"
    autocast: AutocastMode = "off"
    budget_s: float | None = None
    cache: Path
    debug: bool = False
    dump: Path

    @property
    def is_asked(self) -> bool:
        return self.compile != "off" or self.autocast != "off"


class Trial(Record, frozen=True, kw_only=True):
    """A comparison on the job's own steps, which took turns. `pairs`: how many of each kind were measured.

    `eager_step_ms`, `candidate_step_ms`: a step without and with it; of several ranks the slowest of each step counts.
    `kept`: the candidate was faster. `cost_s`: what the trial took beyond as many eager steps, compiling included.
    """

    pairs: int
    eager_step_ms: float
    candidate_step_ms: float
    kept: bool
    cost_s: float


class Recompilation(Record, frozen=True, kw_only=True):
    """Code that was compiled again `count` times. `what`: the module or function; `why`: the guard that failed, with
    the shape that changed."""

    what: str
    why: str
    count: int


class Compilation(Record, frozen=True, kw_only=True):
    """What the compiler did in one rank: this host's lowest one, in outcome.json.

    `state`: what the steps ran as at the end; "trial": the job ended before a decision; "nothing": no model that trains
    was found. `reason`: one sentence, with the figures. `modules`: what was compiled, by class or path.
    `compile_s`: seconds spent compiling. `compilations`: how often; `graphs`, `graph_breaks`: None where not counted.
    `steady_step_ms`: the median step after the decision. `break_even_step`: the step by which compiling has paid off;
    None: it has not, or is not known. `cache_hits`: None where not counted. `dump`: "" unless debugging.
    """

    framework: Literal["torch", "tensorflow"]
    rank: int = 0
    compile: CompileMode = "off"
    state: Literal["compiled", "eager", "trial", "nothing"] = "nothing"
    reason: str = ""
    modules: tuple[str, ...] = ()
    compile_s: float = 0.0
    compilations: int = 0
    graphs: int | None = None
    graph_breaks: int | None = None
    recompilations: tuple[Recompilation, ...] = ()
    trial: Trial | None = None
    steps: int = 0
    steady_step_ms: float | None = None
    break_even_step: int | None = None
    autocast: AutocastMode = "off"
    autocast_state: Literal["bf16", "off", "trial"] = "off"
    autocast_reason: str = ""
    autocast_trial: Trial | None = None
    cache: str = ""
    cache_hits: int | None = None
    dump: str = ""
