"""The definition of what is captured, line by line and without any cleverness; and the GPT-2 job's metrics."""

import re

GPT2 = tuple(
    (name, f"'{name}': ([0-9.]*)")
    for name in (
        "train_runtime",
        "train_samples_per_second",
        "train_steps_per_second",
        "train_loss",
        "epoch",
        "loss",
        "learning_rate",
    )
)


def naive(block: bytes, definitions: tuple[tuple[str, str], ...]) -> list[tuple[str, str, int | None]]:
    """Return (name, the value's repr, step) for each sample: the platform's rule, and ours for steps."""
    samples: list[tuple[str, str, int | None]] = []
    newest = None
    for line in block.split(b"\n"):
        text = line.decode("utf-8", "replace")
        for name, regex in sorted(definitions, key=lambda pair: pair[0] != "step"):
            match = re.search(regex, text) or re.search(regex, text.removesuffix("\r"))
            if match is None:
                continue
            group_number = match.re.groupindex.get("step")
            group = 2 if group_number == 1 and match.re.groups > 1 else 1
            try:
                value = float(match[group])
            except (TypeError, ValueError, AttributeError):
                continue
            if name == "step" and value == value and abs(value) < 2**53 and value == int(value):
                newest = int(value)
            own_step = None
            if group_number is not None and group_number != group and (match[group_number] or "").isdigit():
                own_step = int(match[group_number])
            samples.append((name, repr(value), newest if own_step is None else own_step))
    return samples
