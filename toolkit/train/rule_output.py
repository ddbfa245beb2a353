"""At a job's end, what the Debugger's processing job left: its report, and a document for each rule.

The service's were in S3 beside profiler-output: <job>/rule-output/ProfilerReport-<time>/profiler-output. LocalPath,
/opt/ml/output/profiler, is profiler-output in the container; rule-output stands beside it.
"""

import sys

from toolkit.job.job import Job
from toolkit.log import Log

NAME = "rule-output"
# A day of 8 GPUs and 192 cores takes 10 s.
WITHIN_S = 30.0


def is_asked(job: Job) -> bool:
    """True on the leader of a job whose profilerconfig.json asks for the Debugger's files."""
    return job.monitor is not None and job.monitor.debugger is not None and job.cluster.is_leader


def write(job: Job, log: Log) -> None:
    """Apply the rules to the files of this host, in a process of its own: the end of the job is reported already."""
    from toolkit.train.probe.ask import ask

    assert job.monitor is not None and job.monitor.debugger is not None
    folder = job.monitor.debugger.folder.parent / NAME
    output = str(job.folders.output)
    words = ("rules", "diagnose", output, "--rule-output", str(folder))
    answer = ask((sys.executable, "-m", "toolkit", *words), within_s=WITHIN_S)
    if answer.trouble:
        log.warning(
            f"{folder} is not written: `toolkit {' '.join(words)}` {answer.trouble}. Run it to see why; it needs the"
            " extra `report`"
        )
