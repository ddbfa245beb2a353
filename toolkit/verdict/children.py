"""Pure: the exceptions of ranks that the script started itself, as Lightning does without a launcher."""

import msgspec

from toolkit.job.outcome import Ended, Exit
from toolkit.status_pages import Raised
from toolkit.verdict.cause import account, handled
from toolkit.verdict.collateral import lost_a_rank


def with_children(ended: Ended) -> Ended:
    """Return *ended* with the child's exception as the cause of a script that only lost a rank, its own child.

    Not if `train` knows several ranks: which of them started the child is not known.
    """
    ranks = [end for end in ended.exits if end.rank is not None]
    if len(ranks) != 1 or ranks[0].ok or not ended.raised_by_children:
        return ended
    (end,) = ranks
    if not (lost_a_rank(account(ended, end)) or lost_a_rank(handled(ended, end))):
        return ended
    own = [each for each in ended.raised_by_children if _explains(each, end)]
    if not own:
        return ended
    first = min(own, key=lambda each: each.time_ns)
    exits = tuple(
        msgspec.structs.replace(each, raised_ns=first.time_ns) if each is end else each for each in ended.exits
    )
    return msgspec.structs.replace(ended, exits=exits, raised={**ended.raised, end.process: first})


def _explains(noted: Raised, end: Exit) -> bool:
    """True if *noted* was raised before *end* failed, and is not itself the loss of another rank."""
    said = f"{noted.kind}: {noted.message}"
    behind = (f"{each.kind}: {each.message}" for each in noted.behind)
    lost = any(map(lost_a_rank, (said, *behind)))
    return noted.kind != "SystemExit" and not lost and end.started_ns <= noted.time_ns <= end.failed_ns
