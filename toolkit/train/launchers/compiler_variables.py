"""Pure: what a job's ranks compile, as the rank hook takes it (toolkit/rank/compiler)."""

import json

from toolkit.errors import ContractError
from toolkit.job.job import Job


def variables(job: Job) -> dict[str, str]:
    """Return the variable that tells ranks what to compile; none if the job does not ask for it.

    Raises:
        ContractError: the setting needs the rank hook, which is off.
    """
    compiler = job.compiler
    if compiler is None or not compiler.is_on:
        return {}
    if job.settings.rank_hook == "off":
        raise ContractError(
            "expected the start-up hook in ranks, which compiles, found TOOLKIT_RANK_HOOK=off",
            where="TOOLKIT_COMPILE" if compiler.compile != "off" else "TOOLKIT_AUTOCAST",
            hint="Unset one of the two.",
        )
    settings = {
        "compile": compiler.compile,
        "autocast": compiler.autocast,
        "cache": str(compiler.cache),
        "budget_s": compiler.budget_s,
        "debug": compiler.debug,
        "dump": str(compiler.dump),
    }
    return {"TOOLKIT_COMPILER": json.dumps(settings)}
