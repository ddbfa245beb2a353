"""`toolkit batch SCRIPT|JOB`: find the largest batch that fits into memory, native, compiled and in other variants."""

import argparse
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.cli import run as run_command
from toolkit.cli.parser import Parser, whole
from toolkit.cli.scale import real
from toolkit.errors import UserError
from toolkit.log import Log
from toolkit.records import encode

if TYPE_CHECKING:
    from toolkit.commands.batch.tries import BatchTrial

# Variants by name, and the environment that each gives the job.
VARIANTS: dict[str, dict[str, str]] = {
    "native": {"TOOLKIT_COMPILE": "off", "TOOLKIT_AUTOCAST": "off"},
    "compiled": {"TOOLKIT_COMPILE": "on"},
    "autocast": {"TOOLKIT_AUTOCAST": "bf16"},
}
HEADS = ("variant", "batch", "peak, MiB", "GPU, MiB", "learning rate", "weight decay", "next larger")
EPILOG = """\
Each try runs the first steps of the job in processes of its own, with the hyperparameter --batch set, and is killed
after them, or as soon as it needs more than --memory. A variant is native, compiled, autocast, a hyperparameter
NAME=VALUE of the script (zero=on), or several of these joined by "+" (zero=on+autocast).
Example: toolkit batch --batch per_device_train_batch_size --memory 2GiB entrypoints/gpt2_text/job.toml
Exit code: 0 if each variant has a batch that fits, 1 if one has none, 78 for a wrong option.
"""


def add(parser: Parser) -> None:
    """Declare the arguments."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG

    def option(name: str, metavar: str, meaning: str, **more: Any) -> None:
        parser.add_argument(name, metavar=metavar, help=meaning, **more)

    option("--batch", "NAME", "the hyperparameter that is the batch size", required=True)
    option("--memory", "SIZE", "what the job's processes may need together (2GiB; default: this host's or container's)")
    option(
        "--variant",
        "NAME",
        "what to search for; may be given several times (default: native, compiled)",
        action="append",
    )
    option("--start", "N", "the first batch to try (default: the job's own, else 8)", type=whole)
    option("--most", "N", "the largest batch to try (default: 65536)", type=whole, default=65536)
    option("--multiple", "N", "try multiples of this number only (default: 1)", type=whole, default=1)
    option(
        "--tolerance",
        "SHARE",
        "how near the result must be to a batch that does not fit (default: 0.05)",
        type=real,
        default=0.05,
    )
    option("--steps", "N", "steps of each try (default: 3)", type=whole, default=3)
    option("--patience", "SECONDS", "the longest wait for these steps (default: 600)", type=real, default=600.0)
    option(
        "--learning-rate",
        "LR",
        "the learning rate that belongs to the job's own batch: scaled to each result",
        type=real,
    )
    option("--weight-decay", "WD", "the weight decay that belongs to the job's own batch", type=real)
    parser.add_argument("--json", action="store_true", help="the result as one JSON document")
    parser.add_argument(
        "job", nargs=argparse.REMAINDER, metavar="SCRIPT|JOB ...", help="as of toolkit run, with its options"
    )


def run(arguments: argparse.Namespace, log: Log) -> int:
    """Search for each variant and print the table; return the exit code.

    Raises:
        ContractError, UserError: an option is wrong, or the job fails with the smallest batch for another reason than
            memory.
    """
    import msgspec

    from toolkit.commands.simulate.check import check
    from toolkit.job.file.job_file import size_bytes
    from toolkit.job.file.options import Origin
    from toolkit.machine import memory_bytes

    if not arguments.job:
        raise UserError("expected a script or a job file, found none", where="toolkit batch")
    parser = Parser(prog="toolkit batch")
    run_command.add(parser)
    parsed = vars(parser.parse_args(arguments.job)) | {"command": "run"}
    job = run_command.read(parsed, Path.cwd(), run_command.stamp(time.time_ns()))
    with tempfile.TemporaryDirectory() as folder:  # The tries have folders of their own.
        run_of_its_own = msgspec.structs.replace(job.run, job_dir=Path(folder, "try"))
        check(msgspec.structs.replace(job, run=run_of_its_own))
    batch_text = str(job.hyperparameters.get(arguments.batch))
    own_batch = int(batch_text) if batch_text.isdecimal() else None
    start = arguments.start or own_batch or 8
    limit = (
        size_bytes(arguments.memory, "memory", Origin(where="toolkit batch", names={"memory": "--memory"}))
        if arguments.memory
        else memory_bytes(Path("/"))
    )
    names = arguments.variant or ["native", "compiled"]
    changes = {name: _parse_variant(name) for name in names}
    trials_by_variant: dict[str, list[BatchTrial]] = {}
    for name, (hyperparameters, variables) in changes.items():
        words = [*arguments.job, "--hosts", "1"]
        for key, value in hyperparameters.items():
            words += ["--hyperparameter", f"{key}={value}"]
        for key, value in variables.items():
            words += ["--env", f"{key}={value}"]
        trials_by_variant[name] = _search(words, name, arguments, start, limit, log)
    scaled = {name: _scale(tries, own_batch or start, arguments) for name, tries in trials_by_variant.items()}
    if arguments.json:
        _print_json(trials_by_variant, scaled, limit)
    else:
        _print_table(trials_by_variant, scaled, arguments.batch, limit)
    return 0 if all(any(trial.fits for trial in tries) for tries in trials_by_variant.values()) else 1


def _parse_variant(name: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return the hyperparameters and the environment that the variant *name* gives the job.

    Raises:
        UserError: there is no such variant.
    """
    hyperparameters: dict[str, str] = {}
    variables = dict(VARIANTS["native"])
    for part in name.split("+"):
        key, equals, value = part.partition("=")
        if equals and key:
            hyperparameters[key] = value
        elif part in VARIANTS:
            variables |= VARIANTS[part]
        else:
            raise UserError(
                f"expected {', '.join(VARIANTS)} or NAME=VALUE, joined by +, found {part!r}",
                where="toolkit batch --variant",
            )
    return hyperparameters, variables


def _search(
    words: Sequence[str], name: str, arguments: argparse.Namespace, start: int, limit: int, log: Log
) -> "list[BatchTrial]":
    """Return the tries of one variant, in their order.

    Raises:
        UserError: the job fails for another reason than memory with every batch.
    """
    from toolkit.commands.batch.search import next_batch
    from toolkit.commands.batch.tries import run_trial

    tries: list[BatchTrial] = []
    with tempfile.TemporaryDirectory(prefix="toolkit-batch-") as folder:
        environ = dict(os.environ) | {
            "XDG_STATE_HOME": folder
        }  # The tries are no jobs that `toolkit jobs` should show.
        while True:
            batch = next_batch(
                {trial.batch: trial.fits for trial in tries},
                start=start,
                most=arguments.most,
                multiple=arguments.multiple,
                tolerance=arguments.tolerance,
            )
            if batch is None:
                break
            tried = run_trial(
                [*words, "--hyperparameter", f"{arguments.batch}={batch}"],
                batch,
                Path(folder) / f"try-{len(tries)}",
                environ=environ,
                limit_bytes=limit,
                steps=arguments.steps,
                patience_s=arguments.patience,
            )
            tries.append(tried)
            result = "fits" if tried.fits else tried.reason
            log.info(f"{name}: batch {batch}: {result} ({_format_mib(tried.memory_bytes)} MiB, {tried.took_s:.0f} s)")
    smallest = min(tries, key=lambda trial: trial.batch)
    if not any(trial.fits for trial in tries) and not smallest.is_memory:
        raise UserError(
            f"expected the job to run with a small batch, found: {smallest.reason}", where=f"toolkit batch: {name}"
        )
    return tries


def _scale(tries: "Sequence[BatchTrial]", old_batch: int, arguments: argparse.Namespace) -> Mapping[str, float | None]:
    """Return learning rate and weight decay for the largest batch; None where none was given, or none fits."""
    from toolkit.commands.batch.scaling import scaled
    from toolkit.commands.batch.search import largest

    new_batch = largest({trial.batch: trial.fits for trial in tries})
    if new_batch is None:
        return {"learning_rate": None, "weight_decay": None}
    values = scaled(
        old_batch=old_batch, new_batch=new_batch, rate=arguments.learning_rate, decay=arguments.weight_decay
    )
    return {"learning_rate": values.learning_rate, "weight_decay": values.weight_decay}


def _find_best(tries: "Sequence[BatchTrial]") -> "tuple[BatchTrial | None, BatchTrial | None]":
    """Return the largest batch that fits, and the smallest one above it that does not."""
    best = max((trial for trial in tries if trial.fits), key=lambda trial: trial.batch, default=None)
    above = [trial for trial in tries if not trial.fits and (best is None or trial.batch > best.batch)]
    return best, min(above, key=lambda trial: trial.batch, default=None)


def _print_table(
    trials_by_variant: "Mapping[str, Sequence[BatchTrial]]",
    scaled: Mapping[str, Mapping[str, float | None]],
    batch: str,
    limit: int,
) -> None:
    print(f"the largest {batch} within {_format_mib(limit)} MiB")
    rows = [HEADS, *(_build_row(name, tries, scaled[name]) for name, tries in trials_by_variant.items())]
    # A column in which no variant has anything is left out.
    columns = [number for number in range(len(HEADS)) if number == 0 or any(row[number] for row in rows[1:])]
    widths = {number: max(len(row[number]) for row in rows) for number in columns}
    for row in rows:
        print("  ".join(row[number].ljust(widths[number]) for number in columns).rstrip())
    results = {name: best.batch for name, tries in trials_by_variant.items() if (best := _find_best(tries)[0])}
    if "native" in results and "compiled" in results and results["compiled"] < results["native"]:
        print("compiling makes the largest batch smaller here: the compiled code keeps more in memory.")


def _build_row(name: str, tries: "Sequence[BatchTrial]", scaled: Mapping[str, float | None]) -> tuple[str, ...]:
    best, above = _find_best(tries)
    return (
        name,
        str(best.batch) if best else "none",
        _format_mib(best.memory_bytes) if best else "",
        _format_mib(best.gpu_bytes) if best and best.gpu_bytes else "",
        _format_number(scaled["learning_rate"]),
        _format_number(scaled["weight_decay"]),
        f"{above.batch}: {above.reason}" if above else "none was tried",
    )


def _print_json(
    trials_by_variant: "Mapping[str, Sequence[BatchTrial]]",
    scaled: Mapping[str, Mapping[str, float | None]],
    limit: int,
) -> None:

    variants = {}
    for name, tries in trials_by_variant.items():
        best = _find_best(tries)[0]
        variants[name] = {"batch": best.batch if best else None, **scaled[name], "tries": tries}
    print(encode({"memory_bytes": limit, "variants": variants}).decode())


def _format_number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def _format_mib(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 20):,.0f}"
