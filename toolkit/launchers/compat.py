"""Pure: which old import names a job's script is given (toolkit/compat), by its distribution or by TOOLKIT_COMPAT."""

from pathlib import Path

import toolkit
from toolkit.errors import ContractError
from toolkit.job.job import Job

FOLDER = Path(toolkit.__file__).parent / "compat"
NAMES = ("smddp", "torch_xla")  # Folders of toolkit/compat, as TOOLKIT_COMPAT names them.
# What a distribution brings by itself.
BROUGHT = {"smddp": ("smddp",)}


def names(job: Job) -> tuple[str, ...]:
    """Return the names that *job*'s script is given; none on a host outside the distribution unless asked for by name.

    Raises:
        ContractError: TOOLKIT_COMPAT holds a name that is none of ours.
    """
    asked = [name for name in job.settings.compat.replace(",", " ").split() if name]
    if asked == ["off"]:
        return ()
    for name in asked:
        if name not in NAMES:
            raise ContractError(
                f"expected off or names among {', '.join(NAMES)}, found {name!r}",
                where="TOOLKIT_COMPAT",
                hint="Correct the variable or unset it.",
            )
    return tuple(dict.fromkeys((*BROUGHT.get(job.strategy.name, ()), *asked)))


def variables(job: Job) -> dict[str, str]:
    """Return what tells the rank hook, nothing where no name is asked for."""
    folders = ":".join(str(FOLDER / name) for name in names(job))
    return {"TOOLKIT_COMPAT_PATH": folders} if folders else {}
