"""Data: the errors of a process that failed only because another one ended: collateral failures.

A collateral failure is reported as the cause only if no process failed by itself. Each row: words in the error (lower
case) and whose they are. To add one, add the row and a line in tests/train/verdict.
"""

LOST_RANK: tuple[tuple[str, str], ...] = (
    # gloo (torch 2.9 to 2.13, read in their tracebacks)
    ("connection closed by peer", "gloo"),
    ("gloo/transport/tcp", "gloo"),
    ("timed out waiting", "gloo: a peer did not come to the collective"),
    # NCCL
    ("ncclremoteerror", "NCCL: a peer ended"),
    ("ncclsystemerror", "NCCL: a socket to a peer broke"),
    ("ncclinternalerror", "NCCL"),
    ("nccl communicator was aborted", "NCCL: aborted after another's failure"),
    ("watchdog caught collective operation timeout", "NCCL: a peer did not come to the collective"),
    ("remote process exited or there was a network error", "NCCL"),
    # torch's store and rendezvous
    ("distnetworkerror", "torch: the store's host is gone"),
    ("diststoreerror", "torch: the store's host is gone"),
    ("distbackenderror", "torch: a collective broke"),
    ("rendezvousclosederror", "torchrun"),
    ("rendezvousconnectionerror", "torchrun"),
    ("recvvalue failed", "torch's store"),
    ("failed to recv, got 0 bytes", "torch's store"),
    # others
    ("horovodinternalerror", "Horovod: a peer ended"),
    ("horovod has been shut down", "Horovod under TensorFlow, whose error is an UnknownError: a peer ended"),
    ("mpi_err_proc_failed", "MPI: a peer ended"),
    ("communication error with rank", "MPICH: a peer ended"),
    ("ofi poll failed", "MPICH over libfabric: a peer ended"),
    ("collective ops is aborted by", "TensorFlow: a worker of the collective is gone"),
    ("has ended with 0 and will not join", "JAX, by the rank hook: a rank ended before all had joined"),
    ("the jax distributed service detected fatal errors", "JAX 0.10: another process or the coordinator is gone"),
)
# The same, but the lost process need not be a rank: a server, a data store, any socket.
LOST_PEER: tuple[tuple[str, str], ...] = (
    ("connection reset by peer", "gloo, any socket"),
    ("unavailableerror", "TensorFlow: a server or worker is gone"),
    ("brokenpipeerror", "a pipe or socket whose reader is gone"),
    ("connectionrefusederror", "a socket to a process that is gone"),
)
# Errors that repeat another rank's, whatever it is.
REPEATED: tuple[tuple[str, str], ...] = (("remotesteperror", "model parallel: the step failed on another rank"),)

# Errors of the libraries above that are causes of their own.
CAUSES: tuple[tuple[str, str], ...] = (
    ("received data size doesn't match expected size", "gloo: ranks came to one collective with different sizes"),
    ("failed to listen on any local network address", "torch's store: its port is taken or forbidden"),
    ("address already in use", "gloo, torch's store"),
    ("coordinationservice/registertask", "JAX: the coordinator was never reached"),
    ("device-side assert triggered", "CUDA, told by NCCL's watchdog"),
    ("an illegal memory access was encountered", "CUDA, told by NCCL's watchdog"),
    ("cuda error: out of memory", "CUDA"),
)


def is_collateral(error: str) -> bool:
    """Return True if *error*, an error or the last lines of a process, reports the loss of another process."""
    low = error.lower()
    return _names_any(low, REPEATED) or (_names_any(low, (*LOST_RANK, *LOST_PEER)) and not _names_any(low, CAUSES))


def reports_lost_rank(error: str) -> bool:
    """Return True if *error* reports the loss of another rank of the job, not just of any process."""
    low = error.lower()
    return _names_any(low, REPEATED) or (_names_any(low, LOST_RANK) and not _names_any(low, CAUSES))


def _names_any(low: str, rows: tuple[tuple[str, str], ...]) -> bool:
    return any(words in low for words, _ in rows)
