"""Pure: a rank that ends with 0 while the others train. The others lose it and fail; its early exit is the cause."""

from collections.abc import Sequence

import msgspec

from toolkit.job.outcome import EarlyExit, Exit, Outcome


def first_early_exit(host: str, exits: Sequence[Exit]) -> EarlyExit | None:
    """Return the first rank of *host* that ended with 0 by itself, None if none did."""
    well = [end for end in exits if end.rank is not None and end.ok and not end.signalled]
    end = min(well, key=lambda end: end.failed_ns, default=None)
    if end is None:
        return None
    return EarlyExit(
        host=host,
        process=end.process,
        pid=end.pid,
        at_ns=end.failed_ns,
        rank=end.rank,
        local_rank=end.local_rank,
    )


def blame_early_exit(outcome: Outcome) -> Outcome:
    """Return *outcome* with the early exit as its cause if the other ranks only lost that rank.

    For a job whose hosts have no link: only ranks of the same host are compared.
    """
    early = first_early_exit(outcome.cause_host, outcome.exits)
    if early is None or not early.explains(outcome.cause.failed_ns):
        return outcome
    # mpirun may end the others itself, with a code of its own, before they report whom they lost.
    left = (
        any(end.without_mpi_finalize and end.rank == early.rank for end in outcome.exits) and outcome.status == "failed"
    )
    if not left and (outcome.cause.primary or not outcome.cause.peer_lost):
        return outcome
    return msgspec.structs.replace(
        outcome,
        exit_code=1 if left else outcome.exit_code,
        cause=early.cause(outcome.cause),
    )
