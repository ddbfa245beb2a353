"""`toolkit scale`: learning rate and weight decay for a new batch size."""

import argparse
import math
from typing import Any

from toolkit.cli.parser import Parser, whole
from toolkit.errors import UserError
from toolkit.log import Log
from toolkit.records import encode

EPILOG = """\
Learning rate' = learning rate x new / old, weight decay' = weight decay x old / new, with the global batch: the batch
per device x devices x hosts x accumulation. It is a first guess; a much larger batch may also need a warm-up.
Example: toolkit scale --batch 77 --new-batch 56 --learning-rate 1e-3 --weight-decay 1e-4
"""


def add(parser: Parser) -> None:
    """Declare the arguments."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG

    def number(name: str, metavar: str, meaning: str, kind: Any = whole, **more: Any) -> None:
        parser.add_argument(name, metavar=metavar, help=meaning, type=kind, **more)

    number("--batch", "N", "the batch per device that the values belong to", required=True)
    number("--new-batch", "N", "the new batch per device (default: as before)")
    number("--learning-rate", "LR", "the learning rate that belongs to --batch", real)
    number("--weight-decay", "WD", "the weight decay that belongs to --batch", real)
    number("--devices", "N", "devices of each host (default: 1)", default=1)
    number("--hosts", "N", "hosts (default: 1)", default=1)
    number("--accumulation", "N", "batches accumulated before each optimizer step (default: 1)", default=1)
    number("--new-devices", "N", "devices of each host from now on (default: as before)")
    number("--new-hosts", "N", "hosts from now on (default: as before)")
    number("--new-accumulation", "N", "accumulated batches from now on (default: as before)")
    parser.add_argument("--json", action="store_true", help="the same as one JSON document")


def run(arguments: argparse.Namespace, log: Log) -> int:  # noqa: ARG001 - every command is called alike
    """Print the scaled values; return the exit code."""
    from toolkit.commands.batch.scaling import global_batch, scaled

    changed = ("new_batch", "new_devices", "new_hosts", "new_accumulation")
    if all(getattr(arguments, name) is None for name in changed):
        raise UserError("expected what changes, found nothing", hint="Give --new-batch, --new-devices or --new-hosts.")
    if arguments.learning_rate is None and arguments.weight_decay is None:
        raise UserError("expected a value to scale, found none", hint="Give --learning-rate, --weight-decay or both.")

    def now(name: str) -> int:
        new = getattr(arguments, f"new_{name}")
        return int(getattr(arguments, name) if new is None else new)

    new_values = scaled(
        old_batch=global_batch(
            arguments.batch, devices=arguments.devices, hosts=arguments.hosts, accumulation=arguments.accumulation
        ),
        new_batch=global_batch(
            now("batch"), devices=now("devices"), hosts=now("hosts"), accumulation=now("accumulation")
        ),
        rate=arguments.learning_rate,
        decay=arguments.weight_decay,
    )
    if arguments.json:
        print(encode(new_values).decode())
        return 0
    print(f"global batch   {new_values.old_batch} -> {new_values.new_batch} (x {new_values.factor:.6g})")
    for name, old, new in (
        ("learning rate", arguments.learning_rate, new_values.learning_rate),
        ("weight decay", arguments.weight_decay, new_values.weight_decay),
    ):
        if new is not None:
            print(f"{name:<15}{old:.6g} -> {new:.10g}")
    return 0


def real(word: str) -> float:
    """The type of an argument that is a finite number; `scaled` checks its range."""
    try:
        value = float(word)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"expected a number, found {word!r}")
    return value
