"""Pure: the lines that the log gets when the stop machine decides."""

from toolkit.job.outcome import Exit, signal_name
from toolkit.train.supervise.stop_actions import WriteLog
from toolkit.train.supervise.stop_times import LEADER_DONE_S


def ranks_save(names: tuple[str, ...]) -> WriteLog:
    """Return the line that says which ranks write a checkpoint and are waited for."""
    return WriteLog(level="info", text=f"{', '.join(names)} is writing a checkpoint: the others wait for it")


def rank_failed(exit: Exit) -> WriteLog:
    text = f"{_name(exit)} ended with {_status(exit)}; stopping this host's other ranks"
    return WriteLog(level="error", text=text)


def service_failed(exit: Exit) -> WriteLog:
    return WriteLog(level="error", text=f"{_name(exit)} ended with {_status(exit)}; stopping this host")


def rank_unfinalized(exit: Exit) -> WriteLog:
    return WriteLog(level="warning", text=f"{_name(exit)} ended with 0 and without MPI_Finalize")


def unfinalized_rank_awaited() -> WriteLog:
    """Return the line that says that ranks wait for one that ended without MPI_Finalize, and are stopped."""
    return WriteLog(level="error", text="a rank ended without MPI_Finalize; stopping the ranks that wait for it")


def leader_done() -> WriteLog:
    """Return the line that says that the leader's script has ended, and this host's is stopped."""
    return WriteLog(level="info", text=f"the leader's script ended well {LEADER_DONE_S:g} s ago; ending this host's")


def _name(exit: Exit) -> str:
    return f"{exit.process} (pid {exit.pid})"


def _status(exit: Exit) -> str:
    return f"code {exit.code}" if exit.signal is None else signal_name(exit.signal)
