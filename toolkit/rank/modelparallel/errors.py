"""Errors of the model parallel library. sagemaker-training collects the names of such classes."""


class SMPError(RuntimeError):
    """Any error of the model parallel library."""


class NotInitialized(SMPError):  # noqa: N818 - a state, as PeerLost
    """A call that needs smp.init() came before it."""

    def __init__(self, what: str = "This call") -> None:
        super().__init__(f"{what} needs the ranks' connections: call smp.init() first")


class Elsewhere(SMPError):  # noqa: N818 - a state, as PeerLost
    """The rank *rank*, for which this one waits, is in a call of another kind: its message was one of *kind*."""

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
