"""The summary of a run in a tracker: how the job ended, and its most expensive findings."""

from pathlib import Path

from toolkit.errors import ToolkitError
from toolkit.job.exports import ExportsConfig
from toolkit.job.outcome import Outcome, from_document
from toolkit.masking.excerpt import beginning
from toolkit.records import Record
from toolkit.series import findings

MOST_FINDINGS = 5
MOST_CAUSE = 1000  # Characters.


class Summary(Record, frozen=True, kw_only=True):
    """The end of the job."""

    outcome: Outcome
    """The outcome on this host, with times since 1970 and secrets masked."""
    findings: tuple[str, ...] = ()
    """What the monitor of this host found, in sentences, most expensive first."""

    @property
    def cause(self) -> str:
        """The cause in one line; "" of a success."""
        cause = self.outcome.cause
        where = " of host ".join(filter(None, (cause.process, self.outcome.cause_host))) if cause.message else ""
        text = " ".join(cause.message.split())
        return beginning(f"{text} ({where})" if where else text, MOST_CAUSE)

    def fields(self) -> dict[str, str | int]:
        """Return the summary as names and values, for trackers that have such."""
        fields: dict[str, str | int] = {
            "status": self.outcome.status,
            "exit_code": self.outcome.exit_code,
            "restarts": len(self.outcome.restarts),
        }
        if self.cause:
            fields["cause"] = self.cause
        if self.outcome.cause.advice:
            fields["advice"] = beginning(" ".join(self.outcome.cause.advice.split()), MOST_CAUSE)
        if self.findings:
            fields["findings"] = "\n".join(self.findings)
        return fields


def read(config: ExportsConfig) -> Summary | None:
    """Return the summary of the job that *config* is about, None if its outcome cannot be read."""
    assert config.outcome is not None
    try:
        outcome = from_document(config.outcome.read_bytes(), str(config.outcome))
    except (OSError, ToolkitError):
        return None
    return Summary(outcome=outcome, findings=_headlines(config.output / "monitor" / findings.NAME, config.attempt - 1))


def _headlines(path: Path, attempt: int) -> tuple[str, ...]:
    """Return the findings of the last *attempt*, most expensive first; of several about the same the newest."""
    try:
        all_of_them = findings.read(path)
    except OSError:
        return ()
    newest = {
        (finding.rule, finding.subject, finding.host, finding.rank): finding
        for finding in all_of_them
        if finding.attempt == attempt
    }
    by_cost = sorted(newest.values(), key=lambda finding: -(finding.lost_s or 0.0))
    return tuple(f"{finding.rule}: {finding.text}" for finding in by_cost[:MOST_FINDINGS])
