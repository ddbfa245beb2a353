"""What each exporter offers, and what they share."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from toolkit.errors import UserError
from toolkit.metrics.sample import Sample


class Exporter(Protocol):
    """Sends metrics to one place. Any method may raise any error: `process` drops the exporter then."""

    def samples(self, new: Sequence[Sample]) -> None:
        """Send what the script printed."""

    def system(self, time_s: float, values: Mapping[str, float]) -> None:
        """Send the monitor's sample of *time_s*, seconds since the epoch; NaN where nothing was measured."""

    def close(self) -> None:
        """Send what is still held, and end."""


def missing(package: str, extra: str, error: ImportError) -> UserError:
    """Return the error for an exporter whose *package* is not installed."""
    hint = f"Install it in the image: pip install 'container-training-toolkit[{extra}]'"
    return UserError(f"needs the package {package}, which cannot be imported ({error})", hint=hint)
