"""Pure: what a job's ranks compile, as the rank hook takes it (toolkit/rank/compiler)."""

import json

from toolkit.errors import ContractError
from toolkit.job.job import Job


def variables(job: Job) -> dict[str, str]:
    """Return the variable that tells ranks what to compile; none if the job does not ask for it.

    Raises:
        ContractError: the setting needs the rank hook, which is off.
    """
    asked = job.compiler
    if asked is None or not asked.is_asked:
        return {}
    if job.settings.rank_hook == "off":
        raise ContractError(
            "expected the start-up hook in ranks, which compiles, found TOOLKIT_RANK_HOOK=off",
            where="TOOLKIT_COMPILE" if asked.compile != "off" else "TOOLKIT_AUTOCAST",
            hint="Unset one of the two.",
        )
    told = {
        "compile": asked.compile,
        "autocast": asked.autocast,
        "cache": str(asked.cache),
        "budget_s": asked.budget_s,
        "debug": asked.debug,
        "dump": str(asked.dump),
    }
    return {"TOOLKIT_COMPILER": json.dumps(told)}
