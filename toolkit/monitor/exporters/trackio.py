"""A run in Trackio, by its own client: one for the job, with the metrics of all its hosts.

A Space (TRACKIO_SPACE_ID) or a server of one's own (TRACKIO_SERVER_URL) gets the values of all hosts in one run.
Without either, each host has a database in its output folder. Trackio stamps a value with the time at which it is sent,
and has no summary of a run: how the job ended arrives as an alert.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from toolkit.job.exports import ExportsConfig
from toolkit.metrics.sample import Sample
from toolkit.monitor.exporters.exporter import Names, missing, rows, system_front
from toolkit.monitor.exporters.kept import Kept
from toolkit.monitor.exporters.summary import Summary

# trackio/utils.py (0.43): keys that it renames, and a front that it takes for its own.
RESERVED = ("project", "run", "timestamp", "step", "time", "metrics")


class Trackio:
    """Writes metrics to a database, or sends them to a server."""

    def __init__(self, config: ExportsConfig, kept: Kept) -> None:
        """Begin or resume the run. Its place comes from Trackio's own variables.

        Raises:
            UserError: trackio is not installed.
            Exception: whatever Trackio raises.
        """
        os.environ.setdefault("TRACKIO_DIR", str(config.output / "trackio"))
        try:
            import trackio
        except ImportError as error:
            raise missing("trackio", "trackio", error) from None
        self._config, self._kept = config, kept
        self._levels = trackio.AlertLevel
        self._names = Names("trackio", clean, kept.names, taken=RESERVED)
        self._run: Any = trackio.init(
            project=config.exports.trackio_project or "",
            name=config.run,
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    def samples(self, new: Sequence[Sample]) -> None:
        for step, _, row in rows(self._config, self._kept, self._names, new):
            self._run.log(row, step=step)

    def system(self, time_s: float, values: Mapping[str, float]) -> None:  # noqa: ARG002 - Trackio has its own clock
        front = system_front(self._config)
        self._run.log_system({f"{front}/{name}": value for name, value in values.items() if value == value})

    def finish(self, summary: Summary) -> None:
        """Send an alert: the leader's with the job's end, others' with their findings."""
        fields = summary.fields()
        outcome = summary.outcome
        texts = [str(fields[name]) for name in ("cause", "advice") if name in fields and self._config.is_leader]
        texts += [f"finding on {self._config.host}: {finding}" for finding in summary.findings]
        if not texts and not self._config.is_leader:
            return
        title = f"job {outcome.status}, exit code {outcome.exit_code}, restarts: {len(outcome.restarts)}"
        level = {"succeeded": self._levels.INFO, "stopped": self._levels.WARN, "failed": self._levels.ERROR}
        self._run.alert(title=title, text="\n".join(texts) or None, level=level[outcome.status])

    def close(self) -> None:
        self._run.finish()


def clean(name: str) -> str:
    """Return a name that Trackio takes as it is."""
    return f"m{name}" if name.startswith("__") else name
