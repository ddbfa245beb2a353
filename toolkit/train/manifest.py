"""Writes output/manifest.json, in a fork of `train` beside the script: it reads folders that may answer late or never.

The fork needs no interpreter of its own, and delays the script by the millisecond that a fork takes.
"""

import os
import signal
from collections.abc import Callable

from toolkit import files
from toolkit.job.job import Job
from toolkit.log import Log
from toolkit.train.supervise import children
from toolkit.train.supervise.poll import is_readable
from toolkit.train.supervise.supervisor import Supervisor

# How long the end of a job waits for a manifest that is not complete yet, and that of a stopped one: it takes some
# 30 ms.
WITHIN_S, STOPPED_WITHIN_S = 2.0, 0.5


class ManifestWriter:
    """Writes the manifest once, when the first attempt begins."""

    def __init__(self, supervisor: Supervisor, log: Log) -> None:
        self._supervisor = supervisor
        self._log = log
        self._pid = 0
        self._read_end = -1

    def begin(self, job: Job) -> None:
        """Start to write the manifest of *job*, unless another `train` around this one does."""
        if job.nested:
            return
        self._read_end, write_end = os.pipe()
        try:
            self._pid = children.fork_call(
                lambda: write_apart(job, self._log.mask, write_end), prctl=self._supervisor.prctl
            )
        except OSError:
            os.close(self._read_end)
            raise
        finally:
            os.close(write_end)
        self._supervisor.apart.add(self._pid)

    def end(self) -> None:
        """Wait for the manifest, not for long; say why there is none."""
        if not self._pid:
            return
        within_s = WITHIN_S if self._supervisor.stopped_by is None else STOPPED_WITHIN_S
        trouble = ""
        if is_readable(self._read_end, within_s):
            trouble = os.read(self._read_end, 4096).decode("utf-8", "replace")
        else:
            if self._pid in self._supervisor.apart:  # Else it is reaped, and another process may have its pid.
                children.send(self._pid, signal.SIGKILL)
            files_of = "source and channels, whose files did not answer"
            self._log.warning(f"manifest.json lacks the digests of {files_of} within {within_s:g} s of the job's end")
        os.close(self._read_end)
        if trouble:
            self._log.warning(f"manifest.json is not written: {trouble}")


def write_apart(job: Job, mask: Callable[[str], str], report: int) -> int:
    """Write the manifest in this fork, which holds none of the job's descriptors; tell *report* what went wrong.

    It is written twice, since the files of the source and the channels may answer late or never.
    """
    os.dup2(report, 3)
    os.closerange(4, 4096)
    try:
        from toolkit.train.provenance.gather import encode_manifest, gather_manifest, note_missing_files, with_files

        manifest = gather_manifest(job, mask)
        files.replace(job.folders.manifest, encode_manifest(note_missing_files(manifest)))
        files.replace(job.folders.manifest, encode_manifest(with_files(manifest, job)))
    except Exception as error:  # noqa: BLE001 - the job goes on without a manifest, whatever is wrong with it
        os.write(3, mask(f"{type(error).__name__}: {error}")[:4096].encode("utf-8", "replace"))
    return 0
