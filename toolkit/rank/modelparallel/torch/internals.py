"""Names of AWS's own modules, beside smp's, that official scripts import: smdistributed.modelparallel.torch.utils,
state_mod and smdistributed.modelparallel.test.torch.utils.
"""

from typing import Any, NoReturn

from toolkit.rank.modelparallel import world
from toolkit.rank.modelparallel.errors import SMPError
from toolkit.rank.modelparallel.torch.tensor.sharding import MARK


def rmsg(message: object) -> str:
    """Return *message* after this rank's number."""
    prefix = f"[{world.current().rank}]" if world.is_begun() else "[?]"
    return f"{prefix} {message}"


def get_distribution_axis(parameter: Any) -> int | None:
    """Return the axis along which *parameter* is divided among tensor parallel ranks, None: it is whole."""
    split = getattr(parameter, MARK, None)
    return None if split is None else int(split.axis)


def dump_model(*_: Any, **__: Any) -> NoReturn:
    """Refused, by an SMPError: a test of AWS's own."""
    _refuse("dump_model", "torch.save(model.state_dict(), path)")


def verify(*_: Any, **__: Any) -> NoReturn:
    """Refused, by an SMPError: a test of AWS's own."""
    _refuse("verify", "torch.testing.assert_close on model.state_dict()")


def _refuse(name: str, instead: str) -> NoReturn:
    raise SMPError(
        f"smdistributed.modelparallel.test.torch.utils.{name}: expected a script without AWS's own tests of its "
        f"library, which are not public, found a call: use {instead}"
    )
