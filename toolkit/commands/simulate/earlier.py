"""The results of an earlier job in the folder of a new one.

A folder with results is refused, as the platform refuses a name that a job has had. With `--replace` the results move
to JOBDIR/.replaced until the new job is ready to start, and are then removed. If it cannot start, they move back.
"""

from pathlib import Path

from toolkit import folders
from toolkit.commands.simulate import facts
from toolkit.commands.simulate.stage import RESULTS, remove
from toolkit.errors import UserError
from toolkit.log import Log

ASIDE = ".replaced"


def results(job_dir: Path) -> list[str]:
    """Return the names of an earlier job's results in *job_dir*.

    Raises:
        OSError: the folder cannot be listed.
    """
    names = folders.names(job_dir)
    return [name for name in (*RESULTS, ASIDE) if name in names]


def refuse(job_dir: Path, *, replace: bool) -> None:
    """Raise UserError if *job_dir* holds results that the new job may not *replace*."""
    if not replace and folders.is_dir(job_dir) and (names := results(job_dir)):
        raise UserError(
            f"expected a name that no job has had, found {_describe(job_dir, names)}",
            where=str(job_dir),
            hint="Give another --name or --job-dir, or --replace: then these results are removed.",
        )


class EarlierResults:
    """The results of an earlier job in a folder that this process has locked."""

    def __init__(self, job_dir: Path) -> None:
        self._job_dir = job_dir
        self._aside = job_dir / ASIDE
        self._all_aside = False

    def put_aside(self, log: Log) -> None:
        """Say what is replaced, and move it to JOBDIR/.replaced.

        Raises:
            OSError: it cannot be moved.
        """
        if folders.is_dir(self._aside):  # The last run was killed before its job was ready to start.
            self.put_back()
        names = results(self._job_dir)
        if not names:
            self._all_aside = True
            return
        log.info(f"--replace removes {_describe(self._job_dir, names)}, once the new job is ready to start")
        self._aside.mkdir(mode=0o700)
        for name in names:
            (self._job_dir / name).rename(self._aside / name)
        self._all_aside = True

    def put_back(self) -> None:
        """Remove what the new job has made, and move the earlier results back to their places.

        Raises:
            OSError: they cannot be moved.
        """
        for name in RESULTS:
            if self._all_aside or folders.exists(self._aside / name, follow_links=False):
                remove(self._job_dir / name)
        if folders.is_dir(self._aside):
            for name in folders.names(self._aside):
                (self._aside / name).rename(self._job_dir / name)
            self._aside.rmdir()

    def remove(self) -> None:
        """Remove what was put aside: the new job is ready to start.

        Raises:
            OSError: it cannot be removed.
        """
        if folders.is_dir(self._aside):
            remove(self._aside)


def _describe(job_dir: Path, names: list[str]) -> str:
    """Return which job left the results *names*: "the job native (Completed, ...) with model.tar.gz (1.2 MB), ..."."""
    job = facts.read_facts(job_dir, 0.0, metrics=False)  # Not running: the time does not count.
    state = ", ended ".join(filter(None, (job.status, job.end_time)))
    listed = ", ".join(_with_size(job_dir / name) for name in names if not name.startswith("."))
    return f"the job {job.name} ({state}) with {listed}" if listed else f"the job {job.name} ({state})"


def _with_size(path: Path) -> str:
    status = folders.status(path, follow_links=False)
    if status is None or folders.is_dir(path, folders.as_absent):
        return f"{path.name}/"
    return f"{path.name} ({status.st_size / 1e6:,.1f} MB)" if status.st_size >= 1e5 else path.name
