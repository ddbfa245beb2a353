"""Pure: what TOOLKIT_PROFILE asks for, as the rank hook takes it (toolkit/rank/profiler)."""

from toolkit.errors import ContractError
from toolkit.job.job import Job
from toolkit.patterns import lazy

_ASKED = lazy(r"(steps|seconds) +([0-9]{1,12})(?: *- *([0-9]{1,12}))?")


def variables(job: Job) -> dict[str, str]:
    """Return the variable that tells ranks what to trace; none if the job does not ask for it.

    Raises:
        ContractError: the setting says neither steps nor seconds, or asks for what cannot be had.
    """
    asked = job.settings.profile
    if not asked:
        return {}
    found = _ASKED.fullmatch(asked)
    if found is None or (found[1] == "seconds" and found[3] is None):
        raise _wrong(f"found {asked[:80]!r}")
    first, last = int(found[2]), int(found[3] or found[2])
    if found[1] == "steps" and first == 0:
        raise _wrong("found step 0: steps are counted from 1")
    if last < first or (found[1] == "seconds" and last == first):
        raise _wrong(f"found {asked!r}, which ends before it has begun")
    if job.settings.rank_hook == "off":
        raise ContractError(
            "expected the start-up hook in ranks, which traces, found TOOLKIT_RANK_HOOK=off",
            where="TOOLKIT_PROFILE",
            hint="Unset one of the two.",
        )
    return {"TOOLKIT_PROFILE_WINDOW": f"{found[1]} {first} {last}"}


def _wrong(found: str) -> ContractError:
    return ContractError(
        f'expected "steps FIRST-LAST" or "seconds FROM-TO", {found}',
        where="TOOLKIT_PROFILE",
        hint='Write it as in "steps 10-20" or "seconds 60-75", or unset it.',
    )
