"""Distributions pytorchddp and torch_distributed: torchrun on every host.

torchrun runs as `-m torch.distributed.run` in the script's interpreter, so another torchrun on PATH is never used. It
starts the rank shim in place of each rank (PYTHON_EXEC), and `train` starts the rank: one pipe for each stream of each
rank, true exit statuses, signals to the rank alone. torchrun's own options are worse by their documentation (we did not
try them): `--redirects` writes files that must be tailed (no back-pressure, twice the disk), and `--tee` polls these
files every 100 ms and mixes partial lines of two ranks.

custom_mpi_options are options of mpirun, which SageMaker starts such jobs with: ranks get the variables among them
(`-x NAME=VALUE`, `--NCCL_DEBUG VALUE`), and a note names the others, which are ignored.
"""

from pathlib import Path

import msgspec

from toolkit.job.command import is_module
from toolkit.job.job import Job, Script
from toolkit.job.plan import RANK_WRAPPER, Listens, Need, Phase, Plan, ProcessSpec
from toolkit.train.launchers import compat, fabric
from toolkit.train.launchers.environment import environment, master, name_needs, stop_policy, tokens
from toolkit.train.launchers.table import world_size

# torchrun kills its workers after 30 s by default (--shutdown-timeout, since torch 2.12; older versions ignore the
# variable). `train` has its own deadline, so torchrun's must come later.
SHUTDOWN_MARGIN_S = 30


def plan(job: Job, run_folder: Path) -> Plan:
    """Return the plan for ranks under torchrun."""
    assert job.script is not None
    arguments = tokens(job)
    per_host, hosts = job.processes_per_host, job.cluster.size
    environ = environment(job, arguments)
    if per_host > 1:
        environ.setdefault("OMP_NUM_THREADS", "1")  # torchrun's own default; if it sets it itself, it prints a banner.
    if compat.has_release_2(job):  # As the SDK's own driver starts it (torchrun_driver.py of sagemaker-train 1.27.0).
        environ.setdefault("NCCL_PROTO", "simple")
    from_options, ignored = exported(job.strategy.mpirun_options)
    environ |= from_options
    own_options = {
        "PET_SHUTDOWN_TIMEOUT": str(int(job.grace_s) + SHUTDOWN_MARGIN_S),
        "PET_LOG_DIR": str(run_folder / "torchrun"),  # Else it leaves torchelastic_* folders in TMPDIR.
        **_own_port(job),
    }
    launcher_environ = {name: value for name, value in own_options.items() if name not in environ}
    has_rank_shim = job.settings.rank_shim == "on"
    # The shell script that starts the rank shim; the supervisor writes it before torchrun starts.
    wrapper = run_folder / RANK_WRAPPER
    rank_python = environ.get("PYTHON_EXEC", job.interpreter)
    if has_rank_shim:
        if "PYTHON_EXEC" in environ:
            environ["TOOLKIT_PYTHON_EXEC"] = environ["PYTHON_EXEC"]
        environ["PYTHON_EXEC"] = str(wrapper)
    main = ProcessSpec(
        name="torchrun",
        argv=(*_torchrun(job), *_script_words(job, wrapper if has_rank_shim else None), *arguments),
        environ=environ,
        launcher_environ=launcher_environ,
        cwd=job.script.folder,
        stop=msgspec.structs.replace(stop_policy(job), with_ranks=not _compiles(job)),
        starts_ranks=tuple(range(job.cluster.rank * per_host, (job.cluster.rank + 1) * per_host)),
        has_rank_shim=has_rank_shim,
        rank_python=rank_python if has_rank_shim else "",
        own_variables=(*launcher_environ, *_of_line(job, environ)),
        rank_aliases={} if job.torchrun is None else {"TORCHELASTIC_RESTART_COUNT": "TOOLKIT_RESTART_COUNT"},
    )
    return Plan(
        launcher="torchrun",
        role="alone" if hosts == 1 else "leader" if job.cluster.is_leader else "follower",
        phase=Phase(name="train", main=main, needs=(*name_needs(job), *_rendezvous(job)), together=True),
        world_size=world_size(job),
        notes=(*fabric.notes(job), *compat.notes(job), *_notes(ignored)),
        modules=("torch",),
    )


def _notes(ignored: tuple[str, ...]) -> tuple[str, ...]:
    """Return a note on options of mpirun that torchrun does not know."""
    if not ignored:
        return ()
    import shlex

    return (f"custom_mpi_options that are mpirun's alone are ignored under torchrun: {shlex.join(ignored)}",)


def _compiles(job: Job) -> bool:
    """True if neuron_parallel_compile runs torchrun: first to collect and compile the graphs, then to train."""
    return job.environ.get("RUN_NEURON_PARALLEL_COMPILE") == "1"


def _torchrun(job: Job) -> tuple[str, ...]:
    prefix = ("neuron_parallel_compile",) if _compiles(job) else ()
    size = ("--nnodes", str(job.cluster.size), "--nproc_per_node", str(job.processes_per_host))
    address, port = master(job)
    addresses = ("--master_addr", address, "--master_port", str(port), "--node_rank", str(job.cluster.rank))
    rendezvous = addresses if job.cluster.size > 1 else ()
    module, options = (
        ("torch.distributed.run", ()) if job.torchrun is None else (job.torchrun.module, job.torchrun.options)
    )
    return (*prefix, job.interpreter, "-m", module, *size, *rendezvous, *options)


def _script_words(job: Job, wrapper: Path | None) -> tuple[str, ...]:
    """Return torchrun's last options and the script."""
    assert job.script is not None
    script = job.script
    if job.torchrun is None:
        return script_arguments(script, wrapper)
    if script.kind == "command":  # Any program of PATH.
        return ("--no-python", "--", *((str(wrapper),) if wrapper else ()), script.entry)
    return (*(("-m",) if script.kind == "module" else ()), "--", script.entry)


def _of_line(job: Job, environ: dict[str, str]) -> tuple[str, ...]:
    """Return the names of variables that ranks of a command line of torchrun get from *environ*: each attempt has a new
    torchrun, which counts from 0, and may start no second one."""
    if job.torchrun is None:
        return ()
    environ["TORCHELASTIC_MAX_RESTARTS"] = str(job.torchrun.max_restarts)
    return ("TORCHELASTIC_MAX_RESTARTS",)


def exported(options: str) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return (the variables that mpirun's *options* give to ranks, the other options).

    >>> exported("-verbose -x NCCL_DEBUG=VERSION --NCCL_DEBUG INFO -x PATH -x =1")
    ({'NCCL_DEBUG': 'INFO'}, ('-verbose', '-x', '=1'))
    """
    tokens = options.split()
    variables, rest = {}, []
    while tokens:
        token = tokens.pop(0)
        if token in ("-x", "--NCCL_DEBUG") and tokens:
            text = tokens.pop(0)
            name, equals, value = text.partition("=") if token == "-x" else ("NCCL_DEBUG", "=", text)
            if equals and not name.isidentifier():
                rest += [token, text]  # No name of a variable: quotation marks are part of it, as for mpirun.
            elif equals:  # Without a value mpirun passes the launcher's own value on; here ranks inherit it anyway.
                variables[name] = value
        else:
            rest.append(token)
    return variables, tuple(rest)


def _own_port(job: Job) -> dict[str, str]:
    """Return the variable that gives torchrun its port where the job has one host. Its default, 29500, is the same for
    every job of the machine. A variable, because the user's own options in variables (PET_*) then still win; not the
    ranks', in which a torchrun that a rank starts would find this port, which is taken."""
    if job.cluster.size > 1:
        return {}
    return {"PET_MASTER_PORT": str(master(job)[1])}


def script_arguments(script: Script, wrapper: Path | None = None) -> tuple[str, ...]:
    """Return torchrun's last options and the script.

    "--" ends torchrun's own options. Without it, its parser refuses an argument of the script that is a prefix of
    several of them as ambiguous ("--log": --log-dir or --logs-specs; torch 2.13).
    """
    if is_module(script):
        return ("-m", "--", script.entry)
    if script.kind != "command":
        return ("--", script.entry)
    return ("--no-python", "--", *((str(wrapper),) if wrapper else ()), *script.through, f"./{script.entry}")


def _rendezvous(job: Job) -> tuple[Need, ...]:
    if job.cluster.size == 1 or job.cluster.is_leader or job.settings.link == "on":
        return ()  # With the link, no host starts before the leader is ready.
    address, port = master(job)
    return (Listens(host=job.cluster.leader, address=address, port=port, within_s=job.settings.join_s),)
