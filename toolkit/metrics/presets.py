"""Metric definitions for lines that many scripts print, by a name: TOOLKIT_METRIC_PRESETS, or a job file's key.

iteration-times: 1 iter time - dataloader : 0.00053 sec, forward : 7.77474 sec, backward: 1.58002 sec
"""

from toolkit.errors import ContractError, did_you_mean

_NUMBER = r"([-+]?(?:[0-9]*[.]?[0-9]+(?:[eE][-+]?[0-9]+)?|nan|inf))"


def _phase(name: str) -> str:
    # The dash may be a hyphen, an en dash or an em dash.
    return rf"(?P<step>[0-9]+) iter time *[-\u2013\u2014].*\b{name} *: *{_NUMBER} *sec"


PRESETS: dict[str, tuple[tuple[str, str], ...]] = {
    "iteration-times": (
        ("dataloader_time", _phase("dataloader")),
        ("forward_time", _phase("forward")),
        ("backward_time", _phase("backward")),
    )
}


def definitions(names: str | tuple[str, ...], setting: str) -> tuple[tuple[str, str], ...]:
    """Return the (name, regex) pairs of the presets *names*, a tuple or comma-separated text from *setting*.

    Raises:
        ContractError: there is no such preset; names the nearest.
    """
    several = names.split(",") if isinstance(names, str) else names
    pairs: list[tuple[str, str]] = []
    for name in (name.strip() for name in several):
        if name and name not in PRESETS:
            hint = did_you_mean(name, PRESETS) or f"The presets: {', '.join(PRESETS)}."
            raise ContractError(f"expected a preset of metrics, found {name!r}", where=setting, hint=hint)
        pairs += PRESETS.get(name, ())
    return tuple(pairs)
