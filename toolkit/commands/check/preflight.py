"""Finds what `train` would do on this host with `train`'s own functions; starts and changes nothing."""

from collections.abc import Callable, Mapping
from typing import TypeVar

import msgspec

from toolkit import settings
from toolkit.commands.check import code as codes
from toolkit.commands.check import inputs, machine, network, options, programs, sagemaker_training, syntax
from toolkit.commands.check.result import CheckResult
from toolkit.errors import ToolkitError, explain_path_error
from toolkit.job.job import Job
from toolkit.job.plan import Plan
from toolkit.log import Log
from toolkit.records import Record
from toolkit.storage.uri import is_remote
from toolkit.train.launchers import table as launchers
from toolkit.train.platforms import table as platforms
from toolkit.train.probe import look
from toolkit.train.source import fetch

T = TypeVar("T")


class CheckReport(Record, frozen=True, kw_only=True):
    """All results. `job`, `plan`: None if an error would keep `train` from making them."""

    results: tuple[CheckResult, ...]
    job: Job | None = None
    plan: Plan | None = None


def check(environ: Mapping[str, str], *, interpreter: str, log: Log) -> CheckReport:
    """Return what `train`, given *environ*, would do on this host, and what would go wrong.

    An error, such as a wrong document, leaves out only the results that depend on it.
    """
    log.hide(environ)
    results: list[CheckResult] = []
    platform = platforms.detect(environ)
    probed = look.probe_machine(environ)
    job, plan = None, None
    given_settings = _tried(results, "settings", lambda: settings.read(environ))
    unknown = settings.unknown(environ)
    if unknown:
        results.append(CheckResult(name="variables", status="warn", found=unknown))
    read = None
    if given_settings is not None:
        read = _tried(
            results,
            "documents",
            lambda: platforms.read_job(platform, environ, given_settings, probed, log, interpreter=interpreter),
        )
    if read is not None:
        job, unknown = look.with_libraries(read[0]), read[1]
        if unknown:
            results.append(CheckResult(name="variables", status="warn", found=unknown))
        results += [inputs.documents(job), *inputs.channels(job), *inputs.metrics(job)]
        plan = _planned(job, results, log)
    folders = platform.folders(environ) if job is None else job.folders
    processes = len(plan.phase.main.starts_ranks) or 1 if plan is not None else 1
    results += (*programs.on_path_as_train(probed), *sagemaker_training.check())
    results += machine.check(probed if job is None else job.machine, folders, environ, processes)
    return CheckReport(results=tuple(results), job=job, plan=plan)


def _planned(job: Job, results: list[CheckResult], log: Log) -> Plan | None:
    if is_remote(job.spec.source or "") and not job.spec.plugin and fetch.channel_archive(job) is None:
        finding = f"{job.spec.source} is in storage: `train` fetches it, and this does not look into it"
        advice = "Give a copy of it as a folder to have it checked."
        results.append(CheckResult(name="code", status="warn", found=finding, advice=advice))
        return None
    code = _tried(results, "code", lambda: codes.find(job, log))
    if code is None:
        return None
    results.append(
        CheckResult(
            name="code", status="ok", found=f"{job.spec.entry or job.spec.plugin} ({code.kind}) in {code.source}"
        )
    )
    results += syntax.check(code.syntax_errors, job.spec.entry or "", code.job.interpreter)
    results += (*options.check(code.job, code.options), *inputs.rules(job, code.rules))
    plan = _tried(results, "launcher", lambda: launchers.plan(code.job, job.folders.scratch / "run"))
    if plan is None:
        return None
    results += [*programs.check(plan, code), *network.check(job, plan)]
    return msgspec.structs.replace(plan, installing=code.installing)


def _tried(results: list[CheckResult], name: str, make: Callable[[], T]) -> T | None:
    """Return what *make* returns; on an error that `train` reports, add its message to *results* and return None."""
    try:
        return make()
    except ToolkitError as error:
        results.append(CheckResult(name=name, status="fail", found=str(error)))
    except OSError as error:  # The base folder, which this user may not read.
        reported = explain_path_error(error)
        if reported is None:
            raise
        results.append(CheckResult(name=name, status="fail", found=str(reported)))
    return None
