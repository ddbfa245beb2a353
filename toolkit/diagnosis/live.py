"""Runs the rules over a running job: each finding once, and again only after it had gone away."""

from collections.abc import Callable, Sequence

import msgspec

from toolkit import diagnosis
from toolkit.diagnosis.rule import SCAN_INTERVAL_US, Configuration
from toolkit.diagnosis.window import EvidenceWindow
from toolkit.series.finding import Finding

# A finding has gone away if so many looks in a row did not find it.
GONE_AFTER = 3
# The first looks come sooner than a rule's scan interval, since a short job has few samples to look at.
SOONEST_S = 5.0
_Key = tuple[str, str, int | None]


class LiveDiagnosis:
    """The rules of one host. Call `run_due` as often as convenient: it does nothing until a look is due.

    A rule that fails is said by *note*, and looks no more.
    """

    def __init__(
        self, window: EvidenceWindow, configurations: Sequence[Configuration], note: Callable[[str], None]
    ) -> None:
        self.window = window
        self._note = note
        self._due_s = dict.fromkeys(range(len(configurations)), window.start_s)
        self._configurations = configurations
        # How many looks in a row did not find what was found.
        self._missed: dict[_Key, int] = {}

    def run_due(self, now_s: float, *, is_over: bool = False) -> list[Finding]:
        """Return what is new. *is_over*: the ranks are over; all rules look once more, with patience as after the fact.

        The first looks come every 5 s; then a look waits a tenth of the job's time, at most its scan interval.
        """
        due = [index for index, at_s in self._due_s.items() if is_over or now_s >= at_s]
        if not due:
            return []
        evidence = self.window.evidence(now_s, is_over=is_over)
        new = []
        for index in due:
            configuration = self._configurations[index]
            self._due_s[index] = now_s + self._wait_s(configuration, now_s)
            failures: dict[str, str] = {}
            findings = diagnosis.run(evidence, [configuration], failures)
            for rule, failure in failures.items():
                self._note(f"the rule {rule} is off: {failure}")
                del self._due_s[index]
            new += [finding for finding in findings if self._is_new(finding)]
            self._forget(configuration.rule.name, findings)
        return [msgspec.structs.replace(finding, live=True) for finding in new]

    def _wait_s(self, configuration: Configuration, now_s: float) -> float:
        return next_look_in_s(now_s - self.window.start_s, configuration.parameters.scan_interval_us / 1e6)

    def _is_new(self, finding: Finding) -> bool:
        key = _key(finding)
        is_new = key not in self._missed
        self._missed[key] = 0
        return is_new

    def _forget(self, rule: str, findings: Sequence[Finding]) -> None:
        present = {_key(finding) for finding in findings}
        for key in [key for key in self._missed if key[0] == rule and key not in present]:
            self._missed[key] += 1
            if self._missed[key] >= GONE_AFTER:
                del self._missed[key]


def next_look_in_s(elapsed_s: float, longest_s: float = SCAN_INTERVAL_US / 1e6) -> float:
    """Return the time until the next look in a job that has run for *elapsed_s*."""
    return min(longest_s, max(SOONEST_S, elapsed_s / 10))


def _key(finding: Finding) -> _Key:
    return finding.rule, finding.subject, finding.rank
