"""Pure: the options of torchrun's command line, as a table, and their parser.

The table is that of torch 2.13.0 (torch/distributed/run.py: get_args_parser, and launch.py: parse_args), seen 2026-11;
a test holds it equal to torch's own parser. It stands here because an import of torch takes a second.
"""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NoReturn

from toolkit.errors import ContractError, did_you_mean
from toolkit.records import Record

WHERE = "toolkit torchrun"
NUMA_BINDINGS = ("node", "socket", "exclusive", "core-complex")
Kind = Literal["text", "whole", "number", "list", "flag"]


class TorchrunOption(Record, frozen=True, kw_only=True):
    """An option of torchrun."""

    names: tuple[str, ...]
    """As they are typed; of the first, without dashes and with "_" for "-", the names in Python and PET_* are made."""
    kind: Kind = "text"
    default: Any = ""
    """The value without the option and its variable."""
    choices: tuple[str, ...] = ()
    """The only words that it takes; (): any."""
    by_variable: bool = True
    """A variable PET_NAME sets it."""
    meaning: str
    """Its effect under `toolkit torchrun`, for --help."""

    @property
    def dest(self) -> str:
        """Its name in Python."""
        name = next((name for name in self.names if name.startswith("--")), self.names[0])
        return name.strip("-").replace("-", "_")


def _option(name: str, meaning: str, **more: Any) -> TorchrunOption:
    """Return the option --name, which torchrun also knows with "_" for "-"."""
    names = dict.fromkeys((f"--{name}", f"--{name.replace('-', '_')}"))
    return TorchrunOption(names=tuple(names), meaning=meaning, **more)


def _short(letter: str, name: str, meaning: str, **more: Any) -> TorchrunOption:
    return TorchrunOption(names=(f"-{letter}", f"--{name}"), meaning=meaning, **more)


OPTIONS: tuple[TorchrunOption, ...] = (
    _option("nnodes", "number of hosts; MIN:MAX only where both are the same", default="1:1"),
    _option("nproc-per-node", "ranks on each host: a number, auto, cpu, gpu or xpu", default="1"),
    _option(
        "rdzv-backend", "how hosts meet: static (by --node-rank) or c10d (they number themselves)", default="static"
    ),
    _option("rdzv-endpoint", "HOST[:PORT] at which they meet"),
    _option("rdzv-id", "the rendezvous' id; the secret of the link between hosts is made of it", default="none"),
    _option("rdzv-conf", "KEY=VALUE,...: join_timeout, timeout (seconds) and is_host count"),
    _option("standalone", "one host, on a free port", kind="flag", default=False),
    _option("max-restarts", "how often all ranks are started again after a failure", kind="whole", default=0),
    _option("monitor-interval", "no effect: a rank's end is seen at once", kind="number", default=0.1),
    _option("start-method", "no effect", default="spawn", choices=("spawn", "fork", "forkserver")),
    _option("event-log-handler", "torch's own, passed on", default="null"),
    _option("role", "the ranks' ROLE_NAME", default="default"),
    _short("m", "module", "the script is a module, as for python -m", kind="flag", default=False),
    _option("no-python", "the script is a program: start it without python", kind="flag", default=False),
    _option("run-path", "started as a script", kind="flag", default=False),
    _option("log-dir", "the folder for everything that the run writes; default: one in $TMPDIR", default=None),
    _short(
        "r",
        "redirects",
        "streams that go to files in place of the console: 1 stdout, 2 stderr, 3 both; or 0:1,1:3 by local rank",
        default="0",
    ),
    _short("t", "tee", "streams that go to files and to the console", default="0"),
    _option("local-ranks-filter", "local ranks that the console shows, as 0,1; default: all"),
    _option(
        "duplicate-stdout-filters",
        "lines of stdout that hold one of these texts also go to filtered_stdout.log",
        kind="list",
        default=[],
    ),
    _option("duplicate-stderr-filters", "the same for stderr", kind="list", default=[]),
    _option("node-rank", "this host's number; with rdzv-backend static", kind="whole", default=0),
    _option("master-addr", "the address of host 0; with rdzv-backend static", default="127.0.0.1"),
    _option(
        "master-port",
        "the port at which ranks meet; default: 29500, on one host a free one",
        kind="whole",
        default=None,
    ),
    _option("local-addr", "this host's address, for the others", default=None),
    _option("logs-specs", "not possible: train writes the ranks' logs", default=None, by_variable=False),
    _option(
        "numa-binding", "bind ranks to CPUs near their GPUs", default=None, choices=NUMA_BINDINGS, by_variable=False
    ),
    _option(
        "signals-to-handle",
        "no effect: these and SIGUSR1, SIGUSR2 reach ranks",
        default="SIGTERM,SIGINT,SIGHUP,SIGQUIT",
    ),
    _option("shutdown-timeout", "seconds from SIGTERM to SIGKILL", kind="whole", default=None),
    _option("virtual-local-rank", "LOCAL_RANK=0, and one GPU, for each rank", kind="flag", default=False),
)
# What torch.distributed.launch knows as well.
USE_ENV = TorchrunOption(
    names=("--use-env", "--use_env"),
    kind="flag",
    default=False,
    by_variable=False,
    meaning="torch.distributed.launch: no --local-rank=N for the script",
)
EPILOG = """\
A whole line may follow, too: toolkit torchrun python -m torch.distributed.launch --nproc_per_node 2 train.py
Of each option, a variable PET_NAME sets the default, as for torchrun. TOOLKIT_* variables set what torchrun lacks.
toolkit torchrun --install-shim DIR writes a torchrun for PATH. More: toolkit docs torchrun
"""


class _Parser(argparse.ArgumentParser):
    """argparse's, with abbreviations, as torchrun's; an error is the user's."""

    def error(self, message: str) -> NoReturn:
        raise ContractError(message, where=WHERE, hint=f"For help: {WHERE} --help")


def comma_separated_list(text: str) -> list[str]:
    """Return the texts between the commas of *text*, in which ",," stands for a comma."""
    return [part.replace("\0", ",") for part in text.replace(",,", "\0").split(",")]


_TYPES: dict[Kind, Any] = {"text": str, "whole": int, "number": float, "list": comma_separated_list}


def build_parser(environ: Mapping[str, str], *, launch: bool = False) -> argparse.ArgumentParser:
    """Return the parser; PET_* variables of *environ* are defaults. *launch*: that of torch.distributed.launch.

    Raises:
        ContractError: the variable of a flag is no whole number.
    """
    parser = _Parser(
        prog=WHERE,
        usage=f"{WHERE} [OPTIONS] SCRIPT [ARGUMENTS]",
        description="Run the line that follows torchrun, with the ranks below `train`.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for option in (*OPTIONS, *((USE_ENV,) if launch else ())):
        default = _default(option, environ)
        if option.kind == "flag":
            parser.add_argument(*option.names, action="store_true", default=default, help=option.meaning)
        else:
            choices = option.choices or None
            kind = _TYPES[option.kind]
            parser.add_argument(*option.names, type=kind, default=default, choices=choices, help=option.meaning)
    parser.add_argument("training_script", metavar="SCRIPT", help="the script, or with -m the module")
    parser.add_argument("training_script_args", metavar="...", nargs=argparse.REMAINDER, help="its arguments")
    return parser


def parse_line(words: Sequence[str], environ: Mapping[str, str], *, launch: bool = False) -> argparse.Namespace:
    """Return the values of *words*, by torch's names.

    Raises:
        ContractError: torch's own parser would refuse the line.
    """
    parser = build_parser(environ, launch=launch)
    parsed, unknown = parser.parse_known_args(list(words))
    if unknown:
        known = [name for option in (*OPTIONS, USE_ENV) for name in option.names if name.startswith("--")]
        word = unknown[0].partition("=")[0]
        parser.error(f"unknown option {word}. {did_you_mean(word, known)}".strip())
    return parsed


def _default(option: TorchrunOption, environ: Mapping[str, str]) -> Any:
    name = f"PET_{option.dest.upper()}"
    if not option.by_variable or name not in environ:
        return option.default
    text = environ[name]
    if option.kind != "flag":
        return text  # argparse gives it the type.
    try:
        return bool(int(text))
    except ValueError:
        raise ContractError(f"expected 0 or 1, found {text[:40]!r}", where=name) from None
