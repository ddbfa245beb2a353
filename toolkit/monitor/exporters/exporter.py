"""The interface of the exporters, and what they share."""

import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import groupby
from typing import Protocol

from toolkit.errors import ToolkitError, UserError
from toolkit.job.exports import ExportsConfig
from toolkit.masking.excerpt import beginning
from toolkit.metrics.sample import Sample
from toolkit.monitor.exporters.kept import Kept
from toolkit.monitor.exporters.summary import Summary

SHOWN = 100  # Characters of a name in a message.


class Exporter(Protocol):
    """Sends metrics to one place.

    Any method may raise any error: what it was given has not arrived then, and it is called with the same again.
    """

    def samples(self, new: Sequence[Sample]) -> None:
        """Send what the script printed."""

    def system(self, time_s: float, values: Mapping[str, float]) -> None:
        """Send the monitor's sample of *time_s*, seconds since the epoch; NaN where nothing was measured."""

    def close(self) -> None:
        """Send what is still held, and end; a tracker's run may go on in another process."""


class Tracker(Exporter, Protocol):
    """An exporter with a run for the whole job, of all hosts and all attempts."""

    def finish(self, summary: Summary) -> None:
        """Send how the job ended."""


class NotYetError(Exception):
    """Another host has to do something first; it is no failure, and is tried again."""


def ending(config: ExportsConfig, kept: Kept, sample: Sample) -> str:
    """Return what distinguishes *sample*, in a run of several hosts and ranks, from others of the same name.

    Nothing on the lowest rank that has the metric, on the leader host; else "rank-N", or the host if that is no rank of
    the whole job.
    """
    if sample.rank is None or not config.has_job_ranks:
        return "" if config.is_leader else config.host
    lowest = kept.lowest.setdefault(sample.name, sample.rank) if config.is_leader else None
    return "" if sample.rank == lowest else f"rank-{sample.rank}"


def rows(
    config: ExportsConfig, kept: Kept, names: "Names", new: Sequence[Sample]
) -> Iterator[tuple[int, float, dict[str, float]]]:
    """Yield *new* as rows, for a tracker that has rows: step, time, and values by their names there.

    A row has the values of one rank at one step, and one of each name. A metric "step" that is the step is left out.
    """
    for (step, last), of_a_row in groupby(new, lambda sample: (sample.step or 0, ending(config, kept, sample))):
        row: dict[str, float] = {}
        time_s = 0.0
        for sample in of_a_row:
            if sample.name == "step" and sample.value == step:
                continue
            name = names.of(f"{sample.name}/{last}" if last else sample.name)
            if name in row:
                yield step, time_s, row
                row = {}
            row[name], time_s = sample.value, sample.time_s
        if row:
            yield step, time_s, row


def system_front(config: ExportsConfig) -> str:
    """Return the folder of the monitor's columns in a run of several hosts."""
    return "system" if config.hosts == 1 else f"system/{config.host}"


class Names:
    """The names under which metrics arrive at one place, which may refuse their own. No two metrics share one.

    *clean* returns a name that the place takes. *known*: the names so far, which new ones are added to. *is_tree*: the
    place keeps each metric as a file, so that none may be the folder of another ("val" and "val/acc"). *most*:
    characters. *taken*: names that the exporter itself uses. A changed name is said once.
    """

    def __init__(
        self,
        exporter: str,
        clean: Callable[[str], str],
        known: dict[str, str] | None = None,
        *,
        is_tree: bool = False,
        most: int | None = None,
        taken: Collection[str] = (),
    ) -> None:
        self._exporter = exporter
        self._clean = clean
        self._is_tree = is_tree
        self._most = most
        self._names = {} if known is None else known
        self._taken = {*taken, *self._names.values()}
        self._folders = {folder for name in self._names.values() for folder in _folders(name)}

    def of(self, metric: str) -> str:
        """Return the name of *metric* there."""
        if metric not in self._names:
            name = self._names[metric] = self._free(metric)
            self._taken.add(name)
            self._folders.update(_folders(name))
            if name != metric:
                shortened = metric if len(metric) <= SHOWN else f"{metric[:SHOWN]}..."
                say(f"{self._exporter}: metric {shortened!r} arrives as {name!r}: that place does not take its name")
        return self._names[metric]

    def _free(self, metric: str) -> str:
        name = self._clean(metric) or "_"
        if self._most is not None and len(name) > self._most:
            name = self._marked(name, metric)
        for tried in (name, name.replace("/", ".") if self._is_tree else name, self._marked(name, metric)):
            if self._is_free(tried):
                return tried
        return self._marked(name, f"{metric}\0{len(self._taken)}")

    def _marked(self, name: str, metric: str) -> str:
        """Return *name* with an ending that only *metric* has."""
        ending = blake2b(metric.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
        front = name.replace("/", ".") if self._is_tree else name
        return f"{front if self._most is None else front[: self._most - len(ending) - 1]}_{ending}"

    def _is_free(self, name: str) -> bool:
        if name in self._taken:
            return False
        return not self._is_tree or (name not in self._folders and self._taken.isdisjoint(_folders(name)))


def _folders(name: str) -> list[str]:
    parts = name.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]


class Refusals:
    """Items that the other side refuses: each metric's is said once, and the others go on."""

    def __init__(self, exporter: str) -> None:
        self._exporter = exporter
        self._said: set[str] = set()

    def note(self, metric: str, error: Exception) -> None:
        """Say that values of *metric* do not arrive, because of *error*."""
        if metric not in self._said:
            self._said.add(metric)
            say(f"{self._exporter}: metric {metric[:SHOWN]!r}: a value is refused: {reason(error)}")


def reason(error: Exception) -> str:
    """Return *error* in one line."""
    text = str(error) if isinstance(error, ToolkitError) else f"{type(error).__name__}: {error}"
    return beginning(" ".join(text.split()), 500)


def say(text: str) -> None:
    """Write a line, which `train` takes into its log."""
    sys.stderr.write(f"exports: {text}\n")
    sys.stderr.flush()


def missing(package: str, extra: str, error: ImportError) -> UserError:
    """Return the error for an exporter whose *package* is not installed."""
    hint = f"Install it in the image: pip install 'container-training-toolkit[{extra}]'"
    return UserError(f"needs the package {package}, which cannot be imported ({error})", hint=hint)
