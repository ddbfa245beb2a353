"""The start of a host: packages that are imported from a network file system, and requirements that take long."""

from collections.abc import Iterator

from toolkit.diagnosis.evidence import Evidence
from toolkit.diagnosis.rule import Above, RuleParameters, make_finding, number
from toolkit.diagnosis.units import format_seconds
from toolkit.series.finding import Finding
from toolkit.series.start_up import NETWORK_FILESYSTEMS


class NetworkImports(RuleParameters, frozen=True, kw_only=True):
    """`threshold_s`: seconds that a rank imported packages which lie on a network file system."""

    threshold_s: Above = 10


class RequirementsTime(RuleParameters, frozen=True, kw_only=True):
    """`threshold_s`: seconds that the installation of the requirements took."""

    threshold_s: Above = 60


def network_imports(evidence: Evidence, parameters: NetworkImports, _: frozenset[str]) -> Iterator[Finding]:
    """Packages on a network file system, whose thousands of small files each wait for an answer, took long to
    import."""
    slowest = None
    for rank, start in evidence.start.ranks.items():
        remote = [package for package in start.packages if package.filesystem in NETWORK_FILESYSTEMS]
        took_s = sum(package.took_s for package in remote)
        if took_s >= parameters.threshold_s and (slowest is None or took_s > slowest[1]):
            slowest = rank, took_s, remote
    if slowest is None:
        return
    rank, took_s, remote = slowest
    names = ", ".join(package.name for package in remote)
    yield make_finding(
        "NetworkImports",
        evidence,
        None,
        f"Rank {rank} took {format_seconds(took_s)} to import {names} from a network file system"
        f" ({remote[0].filesystem}).",
        rank=rank,
        numbers=(
            number(
                "imports",
                took_s,
                "time inside of the import statements of these packages before the first step",
                unit="s",
                limit=parameters.threshold_s,
            ),
        ),
        refuted_by="The same imports from a local disk, with an empty page cache, take as long.",
        change="Have the environment in the image, or unpack it onto a local disk before the ranks start.",
        start_s=evidence.start_s,
        end_s=evidence.start_s + took_s,
        lost_s=took_s,
    )


def requirements_time(evidence: Evidence, parameters: RequirementsTime, _: frozenset[str]) -> Iterator[Finding]:
    """The installation of the requirements took long, while the host was paid for."""
    took_s = sum(done.took_s for done in evidence.start.preparations if done.name == "requirements")
    if took_s < parameters.threshold_s:
        return
    yield make_finding(
        "RequirementsTime",
        evidence,
        None,
        f"The requirements took {format_seconds(took_s)}, longer than {parameters.threshold_s:g} s: have them in the"
        " image.",
        numbers=(
            number(
                "requirements",
                took_s,
                "time of pip, uv or a snapshot before the ranks were started",
                unit="s",
                limit=parameters.threshold_s,
            ),
        ),
        refuted_by="The time was spent on waiting for another train of this container, which its log says.",
        change="Have the packages in the image, keep them in storage (TOOLKIT_PACKAGES_URI), or have uv in the image"
        " (docs/requirements.md).",
        start_s=evidence.start_s - took_s,
        end_s=evidence.start_s,
        lost_s=took_s,
    )
