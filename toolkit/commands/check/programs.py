"""Checks the programs that the plan starts: the interpreter, the launcher's module, pip and mpirun."""

import platform
import re
from importlib import metadata, util

from toolkit.commands.check.code import Code
from toolkit.commands.check.result import CheckResult
from toolkit.folders import as_absent, exists, may_exist
from toolkit.job.machine import Machine
from toolkit.job.plan import Plan
from toolkit.train.probe.ask import find_program

# How the version of a build without CUDA ends.
CPU_BUILD = "+cpu"


def check(plan: Plan, code: Code) -> tuple[CheckResult, ...]:
    """Return the results for the programs that *plan* starts."""
    return (*_installer(code), _interpreter(code), _launcher(plan, code), *_mpirun(code), *_missing(plan, code))


def on_path_as_train(machine: Machine) -> tuple[CheckResult, ...]:
    """Return a failure if `train` on PATH is another package's, nothing otherwise."""
    if not machine.other_train:
        return ()
    advice = (
        "Install this toolkit last (pip install --force-reinstall --no-deps container-training-toolkit), or let the"
        " image start `toolkit train`"
    )
    finding = f"train on PATH is {machine.other_train}, not this toolkit"
    return (CheckResult(name="train", status="fail", found=finding, advice=advice),)


def _mpirun(code: Code) -> tuple[CheckResult, ...]:
    """Return this host's mpirun, if the job may use it."""
    mpi = code.job.machine.mpi
    if mpi is None:
        return ()
    kind = {"mpich": "MPICH"}.get(mpi.kind, "Open MPI")
    return (CheckResult(name="mpirun", status="ok", found=f"{kind} {mpi.version} ({mpi.path})"),)


def _interpreter(code: Code) -> CheckResult:
    finding = f"{code.job.interpreter} (Python {platform.python_version()})"
    return CheckResult(name="interpreter", status="ok", found=finding)


def _installer(code: Code) -> tuple[CheckResult, ...]:
    """Return what installs the job's packages, nothing if it has none."""
    phase = code.installing
    if phase is None:
        return ()
    packages = " ".join(token for token in phase.main.argv[3:] if token in ("install", ".", "-r", "requirements.txt"))
    done = phase.skip_if is not None and exists(phase.skip_if, as_absent)
    name = phase.main.name
    finding = f"{name} {packages} was run before in this container" if done else f"{name} {packages} runs first"
    if phase.choice:
        finding += f"; {phase.choice}"
    return (CheckResult(name="install", status="ok", found=finding),)


def _launcher(plan: Plan, code: Code) -> CheckResult:
    finding = f"{plan.launcher}, {plan.world_size} process{'es' * (plan.world_size > 1)}"
    for module in plan.modules:
        if util.find_spec(module) is None:
            return _without(module, plan, code)
        version = _version(module)
        finding += f", {module} {version}" if version else f", {module}"
        if version.endswith(CPU_BUILD) and code.job.machine.gpus:
            advice = f"Install a build of {module} with CUDA, or start without GPUs"
            return CheckResult(name="launcher", status="warn", found=f"{finding}: built without CUDA", advice=advice)
    return CheckResult(name="launcher", status="ok", found=finding)


def _without(module: str, plan: Plan, code: Code) -> CheckResult:
    finding = f"{plan.launcher} needs {module}, which {code.job.interpreter} does not have"
    if re.search(rf"^{module}\b", code.requirements, re.M):
        advice = "requirements.txt brings it, at every start anew: better have it in the image"
        return CheckResult(name="launcher", status="warn", found=finding, advice=advice)
    advice = f"Install it in the image (pip install {module}) or name it in requirements.txt"
    return CheckResult(name="launcher", status="fail", found=finding, advice=advice)


def _version(module: str) -> str:
    try:
        return metadata.version(module)
    except metadata.PackageNotFoundError:
        return ""


def _missing(plan: Plan, code: Code) -> tuple[CheckResult, ...]:
    """Return a result for each program that is missing."""
    results = []
    main = plan.phase.main
    if "/" not in main.argv[0] and find_program(main.argv[0], main.environ.get("PATH", "")) is None:
        finding = f"no {main.argv[0]} on PATH, which starts the launcher"
        results.append(CheckResult(name="program", status="fail", found=finding, advice="Install it in the image"))
    if code.program and not may_exist(code.program):
        script = code.job.spec.entry
        finding = f"{script} names {code.program} in its first line, which is not there"
        advice = f"Install it in the image, or correct the first line of {script}"
        results.append(CheckResult(name="program", status="fail", found=finding, advice=advice))
    if main.has_rank_shim and not may_exist("/bin/sh"):
        finding = "no /bin/sh: the launcher starts ranks itself, and train knows less of how they end"
        results.append(CheckResult(name="program", status="warn", found=finding, advice="Install a shell in the image"))
    return tuple(results)
