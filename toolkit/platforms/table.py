"""The platforms a job can come from, in the order they are looked for: one row each, imported only if chosen."""

from collections.abc import Callable, Mapping
from typing import Protocol

from toolkit.job.job import Folders, Job
from toolkit.job.machine import Machine
from toolkit.job.outcome import Outcome
from toolkit.log import Log
from toolkit.records import Record
from toolkit.settings import Settings


class Reader(Protocol):
    """Reads a platform's variables and documents.

    Raises:
        ContractError: one is missing or wrong.
    """

    def __call__(
        self, environ: Mapping[str, str], settings: Settings, machine: Machine, log: Log, *, interpreter: str = ...
    ) -> Job: ...


class Platform(Record, frozen=True, kw_only=True):
    """What `train` asks of a platform. None of these but `read` raises.

    `folders`: where things are, before any document is read. `clear_stale`: take away what an earlier run reported.
    `report`: tell the platform how the job ended.
    """

    name: str
    folders: Callable[[Mapping[str, str]], Folders]
    clear_stale: Callable[[Folders, Log], None]
    read: Reader
    report: Callable[[Folders, Outcome, Log], None]


def detect(environ: Mapping[str, str]) -> Platform:
    """Return the platform that *environ* is of: the first row that claims it."""
    return next(load() for claims, load in _TABLE if claims(environ))


def _anything(_: Mapping[str, str]) -> bool:
    return True


def _sagemaker() -> Platform:
    from toolkit.platforms.sagemaker import read, report

    return Platform(
        name="sagemaker",
        folders=read.folders,
        clear_stale=report.clear_stale,
        read=read.read,
        report=report.report,
    )


_TABLE: tuple[tuple[Callable[[Mapping[str, str]], bool], Callable[[], Platform]], ...] = ((_anything, _sagemaker),)
