"""A run in Weights & Biases, by its own client: one for the job, with the metrics of all its hosts.

Online, several hosts write to one run by W&B's shared mode, each under its own label; one host needs no such mode. With
WANDB_MODE=offline each host and attempt leaves a folder of the same run, which `wandb sync` uploads. A row has the
values of one rank at one step, and the key "step", which is the charts' x-axis. The client keeps what its server does
not take, in its folder; so a row counts as sent as soon as the client has it.
"""

import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from toolkit.job.exports import ExportsConfig
from toolkit.metrics.sample import Sample
from toolkit.monitor.exporters.exporter import Names, missing, rows, system_front
from toolkit.monitor.exporters.kept import Kept
from toolkit.monitor.exporters.summary import Summary

STEP = "step"
INIT_S = 30.0
IDLE = "10s"  # In Go's form. `train` ends what is left of an attempt sooner.
_REFUSED = frozenset("/\\#?%:")  # In a run's ID.
MOST_ID = 128


class WandB:
    """Sends metrics to a run of W&B, or writes them for `wandb sync`."""

    def __init__(self, config: ExportsConfig, kept: Kept) -> None:
        """Begin or resume the run. Mode, address and credentials come from W&B's own variables.

        Raises:
            UserError: wandb is not installed.
            Exception: whatever W&B raises if the server does not answer or takes no such key.
        """
        folder = Path(os.environ.get("WANDB_DIR") or config.output)
        folder.mkdir(parents=True, exist_ok=True)
        os.environ["WANDB_DIR"] = str(folder)
        os.environ.setdefault("WANDB_SILENT", "true")
        os.environ.setdefault("GOMAXPROCS", "1")  # W&B's service is in Go, and idle threads wake each other.
        try:
            import wandb
        except ImportError as error:
            raise missing("wandb", "wandb", error) from None
        logging.getLogger("wandb").setLevel(logging.ERROR)
        _detach_service()
        self._config, self._kept = config, kept
        mode = os.environ.get("WANDB_MODE", "online")
        is_shared = mode == "shared" or (mode == "online" and config.hosts > 1)
        self._counts_rows = not is_shared
        settings = wandb.Settings(
            mode="shared" if is_shared else mode,
            x_label=config.host,
            x_primary=config.is_leader,
            x_update_finish_state=config.is_leader and config.outcome is not None,
            sagemaker_disable=True,  # Else W&B makes a run of its own for each host.
            x_disable_stats=True,
            x_disable_machine_info=True,
            console="off",
            silent=True,
            disable_code=True,
            disable_git=True,
            init_timeout=INIT_S,
        )
        self._run: Any = wandb.init(
            project=config.exports.wandb_project,
            id=run_id(config.run),
            name=config.job or None,
            dir=str(folder),
            resume=None if is_shared else "allow",
            settings=settings,
        )
        self._names = Names("wandb", clean, kept.names, taken=(STEP,))
        self._run.define_metric("*", step_metric=STEP)
        if self._counts_rows and not kept.run:  # The job was started again: its earlier rows are another `train`'s.
            kept.rows = max(kept.rows, self._run.step)
        kept.run = config.run

    def samples(self, new: Sequence[Sample]) -> None:
        for step, time_s, row in rows(self._config, self._kept, self._names, new):
            self._log(row, step, time_s)

    def system(self, time_s: float, values: Mapping[str, float]) -> None:
        """Send the sample; its step is the seconds since the job's first attempt began."""
        front = system_front(self._config)
        row = {self._names.of(f"{front}/{name}"): value for name, value in values.items() if value == value}
        self._log(row, max(int(time_s - self._kept.began_s), 0), time_s)

    def finish(self, summary: Summary) -> None:
        """Write the run's summary: of the job from the leader, of others their findings. End the run."""
        fields = summary.fields()
        if not self._config.is_leader:
            fields = {f"findings/{self._config.host}": fields["findings"]} if "findings" in fields else {}
        self._run.summary.update({f"toolkit/{name}": value for name, value in fields.items()})
        self._run.finish(exit_code=summary.outcome.exit_code)

    def close(self) -> None:
        """Flush; after `finish` there is nothing left to do."""
        self._run.finish(exit_code=0)

    def _log(self, row: Mapping[str, float], step: int, time_s: float) -> None:
        if self._counts_rows:
            self._run.log({**row, STEP: step, "_timestamp": time_s}, step=self._kept.rows)
            self._kept.rows += 1
        else:
            self._run.log({**row, STEP: step, "_timestamp": time_s})


def _detach_service() -> None:
    """Have the client start its service in the mode that it calls detached.

    Else the service asks ten times a second whether this process still lives (getppid, wandb-core 0.31), which costs
    0.07 to 0.16 % of a core, more than all else that it does here. A detached one ends with its last client, after
    IDLE; and at the exit of this process the client ends it, as it does with any. A client without that mode goes on as
    it is.
    """
    with suppress(ImportError, AttributeError):
        from wandb.sdk.lib.service import service_process

        service_process.start = partial(service_process.start_detached, idle_timeout=IDLE)


def clean(name: str) -> str:
    """Return a name that W&B takes: it reserves those that begin with "_", and reads "." as a key inside a key."""
    return (name[1:] and f"m{name}" if name.startswith("_") else name).replace(".", "_")


def run_id(run: str) -> str:
    """Return an ID that W&B takes."""
    return "".join("-" if character in _REFUSED else character for character in run)[:MOST_ID]
