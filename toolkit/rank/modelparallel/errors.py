"""Errors of the model parallel library. sagemaker-training collects the names of such classes."""


class SMPError(RuntimeError):
    """Any error of the model parallel library."""


class NotInitialized(SMPError):  # noqa: N818 - a state, as PeerLost
    """A function that needs smp.init() was called before it."""

    def __init__(self, call: str = "This call") -> None:
        super().__init__(f"{call} needs the ranks' connections: call smp.init() first")


class PeerInOtherCall(SMPError):  # noqa: N818 - a state, as PeerLost
    """Rank *rank*, for which this rank waits, is in a call of another kind: it sent a message of *kind*."""

    def __init__(self, rank: int | None, kind: str) -> None:
        super().__init__(f"rank {rank} is in another call ({kind})")
        self.rank = rank
        self.kind = kind


class PeerLost(SMPError):  # noqa: N818 - an event, as dataparallel names it
    """Another rank, *rank*, ended. `said_goodbye`: its script ended without an exception."""

    def __init__(self, rank: int, text: str, said_goodbye: bool = False) -> None:
        super().__init__(text)
        self.rank = rank
        self.said_goodbye = said_goodbye
