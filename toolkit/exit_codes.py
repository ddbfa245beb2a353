"""The exit codes of `train` that are not the script's own (docs/exit-codes.md)."""

# sysexits.h: EX_SOFTWARE, EX_TEMPFAIL, EX_CONFIG.
INTERNAL_FAULT = 70
TEMPORARY_FAILURE = 75
MISCONFIGURED = 78
# NVIDIA's resiliency launcher gives it for what another try will not help.
NO_RETRY = 93
# As timeout(1): the job hung, or a log rule stopped it.
TIMED_OUT = 124
# As a shell has it for a program that cannot be started.
CANNOT_START = 127
# By SIGINT and by SIGTERM, as of_signal has it.
INTERRUPTED = 130
STOPPED = 143


def of_signal(number: int) -> int:
    """Return the exit code for an end by signal *number*, as a shell shows it."""
    return 128 + number


def signal_in(code: int) -> int:
    """Return the number of the signal that *code* stands for, 0 or less if it stands for none."""
    return code - 128
