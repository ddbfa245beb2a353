"""Errors of the data parallel library."""


class SMDDPError(RuntimeError):
    """Any error of the data parallel library."""


class SMDDPNotInitializedError(SMDDPError):
    """init_process_group() or init() was not called before this call."""
