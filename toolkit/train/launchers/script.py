"""One process on each host: the script itself, or the plug-in's function."""

from pathlib import Path

from toolkit.job.command import command
from toolkit.job.job import Job
from toolkit.job.plan import Phase, Plan, ProcessSpec
from toolkit.train.launchers import fabric
from toolkit.train.launchers.environment import environment, name_needs, stop_policy, tokens


def plan(job: Job, run_folder: Path) -> Plan:  # noqa: ARG001 - every launcher is called alike
    """Return the plan for a script that runs as one process."""
    assert job.script is not None
    arguments = tokens(job)
    main = ProcessSpec(
        name="script",
        argv=command(job.script, job.interpreter, arguments),
        environ={**_node_rank(job), **environment(job, arguments)},
        # A plug-in runs in `train`'s own folder, as under sagemaker-training: it may download its code itself.
        cwd=Path() if job.script.kind == "plugin" else job.script.folder,
        stop=stop_policy(job),
        rank=0,
    )
    return Plan(
        launcher="script",
        role="alone",
        phase=Phase(name="train", main=main, needs=name_needs(job), together=True),
        notes=fabric.notes(job),
    )


def _node_rank(job: Job) -> dict[str, str]:
    """Return NODE_RANK if each of several hosts runs the script: Lightning needs it to start its own ranks."""
    cluster = job.cluster
    if len(cluster.hosts) == 1 or cluster.taking_part:
        return {}
    return {"NODE_RANK": str(cluster.hosts.index(cluster.current))}
