"""What a script on the open backend can get wrong."""


class SMDDPError(RuntimeError):
    """Any error of the data parallel library."""


class SMDDPNotInitializedError(SMDDPError):
    """A call that needs init_process_group() or init() came before it."""
