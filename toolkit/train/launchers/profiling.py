"""Pure: turns TOOLKIT_PROFILE into the variable that the rank hook reads (toolkit/rank/profiler)."""

from toolkit.errors import ContractError
from toolkit.job.job import Job
from toolkit.patterns import lazy

_WINDOW = lazy(r"(steps|seconds) +([0-9]{1,12})(?: *- *([0-9]{1,12}))?")


def variables(job: Job) -> dict[str, str]:
    """Return the variable that tells ranks what to trace; none if the job does not ask for it.

    Raises:
        ContractError: the setting names neither steps nor seconds, or an impossible range.
    """
    window = job.settings.profile
    if not window:
        return {}
    match = _WINDOW.fullmatch(window)
    if match is None or (match[1] == "seconds" and match[3] is None):
        raise _wrong(f"found {window[:80]!r}")
    first, last = int(match[2]), int(match[3] or match[2])
    if match[1] == "steps" and first == 0:
        raise _wrong("found step 0: steps are counted from 1")
    if last < first or (match[1] == "seconds" and last == first):
        raise _wrong(f"found {window!r}, which ends before it has begun")
    if job.settings.rank_hook == "off":
        raise ContractError(
            "expected the start-up hook in ranks, which traces, found TOOLKIT_RANK_HOOK=off",
            where="TOOLKIT_PROFILE",
            hint="Unset one of the two.",
        )
    return {"TOOLKIT_PROFILE_WINDOW": f"{match[1]} {first} {last}"}


def _wrong(reason: str) -> ContractError:
    return ContractError(
        f'expected "steps FIRST-LAST" or "seconds FROM-TO", {reason}',
        where="TOOLKIT_PROFILE",
        hint='Write it as in "steps 10-20" or "seconds 60-75", or unset it.',
    )
