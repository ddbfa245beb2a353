"""One process on each host: the script itself, or the plug-in's function."""

from pathlib import Path

from toolkit.job.command import command
from toolkit.job.job import Job
from toolkit.job.plan import Phase, Plan, ProcessSpec
from toolkit.launchers import fabric
from toolkit.launchers.environment import environment, names, stop_policy, tokens


def plan(job: Job, run_folder: Path) -> Plan:  # noqa: ARG001 - every launcher is called alike
    """Return the plan for a script that runs as one process."""
    assert job.script is not None
    given = tokens(job)
    main = ProcessSpec(
        name="script",
        argv=command(job.script, job.interpreter, given),
        environ=environment(job, given),
        cwd=job.script.folder,
        stop=stop_policy(job),
        rank=0,
    )
    return Plan(
        launcher="script",
        role="alone",
        phases=(Phase(name="train", main=main, needs=names(job), together=True),),
        notes=fabric.notes(job),
    )
