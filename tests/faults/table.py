"""Data: the faults, how each is brought about, and what every host must then say and end with."""

from typing import Literal

from tests.faults.launchers import ALL, Launcher
from toolkit.records import Record

Cage = Literal["", "network", "proxy", "full", "read-only", "memory", "clock", "small-packets", "small-messages"]
# "The others know within 2 s" and, of hosts that only fall silent, "within 10 s"; both from the fault.
PROMPT_S = 2.0
# Of a rank that takes 0.6 s to end nobody can know before it has; its peers end no sooner.
SLOWLY_S = PROMPT_S + 0.6
SILENT_S = 10.0
VANISHED = 75
HUNG = 124
# Of a leader that came up again before its followers gave it up; and what they say if it came later.
REPLACED = "its train ended, and another process was started in its place"
GIVEN_UP = "its train was killed"


class Fault(Record, frozen=True, kw_only=True):
    """One row of the matrix.

    `program`: how the rank on the faulty host breaks (rank.py), or "" and `act` does it to the hosts. `at`: the faulty
    host. `says`: words of every host's failure text, `{host}` the faulty one, `{who}` its rank that breaks, `|` for
    either-or; `code_there`, `says_there`: the faulty host's own where they differ (says_there None: it cannot say
    anything). `detect_s`, `end_s`: how long after the fault the others may take to name it, and the last host to end
    (`end_there_s`: the faulty one). `stall`: it is a hang, and every host's. `starts`: "late": the faulty host comes
    3 s late; "never": not at all; "misnamed": its name leads to the leader; "other-documents": a
    hyperparameter is another one there; "beside-another-job": late, while a job with the same hosts and ports starts in
    the opposite order. `outage_s`: what was cut is
    healed after so long.
    `own`: words of COLLATERAL that this fault's own cause holds.
    """

    name: str
    text: str
    program: str = ""
    act: str = ""
    at: Literal["leader", "follower"] = "follower"
    starts: Literal["", "late", "never", "misnamed", "other-documents", "beside-another-job"] = ""
    steps: int = 6000
    per_host: int = 1
    cage: Cage = ""
    environ: dict[str, str] = {}
    code: int = 0
    says: tuple[str, ...] = ()
    own: tuple[str, ...] = ()
    code_there: int | None = None
    says_there: tuple[str, ...] | None = ()
    saved: bool = False
    detect_s: float | None = PROMPT_S
    end_s: float = 4.0
    end_there_s: float | None = None
    launchers: tuple[Launcher, ...] = ALL
    stall: bool = False
    outage_s: float = 0.0

    @property
    def stopped(self) -> bool:
        """True if a stop signal is what happens."""
        return self.act.startswith("SIGTERM")


_BOOM = ("RuntimeError: boom on {host}", "host {host}, {who}", "ended with code 1")
_EARLY = ("{who} of host {host} ended with 0", "the others lost it", "host {host}, {who}", "ended with code 0")
_LOST = ("host {host} vanished", GIVEN_UP)
_SILENT = ("host {host} vanished", "nothing was heard of it")

FAULTS: tuple[Fault, ...] = (
    Fault(name="healthy", text="no fault: the job trains for 12 s", steps=600, detect_s=None, end_s=120.0),
    Fault(name="raises", text="a rank raises", program="raises", code=1, says=_BOOM),
    Fault(name="raises-leader", text="a rank of the leader raises", program="raises", at="leader", code=1, says=_BOOM),
    Fault(
        name="raises-in-step",
        text="a rank raises in its part of a model, while the other one waits for its result",
        program="raises-in-step",
        code=1,
        says=_BOOM,
        launchers=("smp",),
    ),
    Fault(
        name="raises-in-step-leader",
        text="a rank of the leader raises in its part of a model",
        program="raises-in-step",
        at="leader",
        code=1,
        says=_BOOM,
        launchers=("smp",),
    ),
    Fault(
        name="raises-slowly",
        text="a rank raises and takes 0.6 s to end; its peers fail before it has",
        program="raises-slowly",
        code=1,
        says=_BOOM,
        detect_s=SLOWLY_S,
    ),
    Fault(
        name="raises-slowly-leader",
        text="a rank of the leader raises and takes 0.6 s to end",
        program="raises-slowly",
        at="leader",
        code=1,
        says=_BOOM,
        detect_s=SLOWLY_S,
    ),
    Fault(
        name="raises-slowly-pair",
        text="two ranks a host: one raises and takes 0.6 s to end, and its neighbour fails before it",
        program="raises-slowly",
        per_host=2,
        code=1,
        says=_BOOM,
        detect_s=SLOWLY_S,
        launchers=("torchrun", "mpi", "smddp", "smp", "jax"),
    ),
    Fault(
        name="clock-ahead",
        text="the host's wall clock goes an hour ahead, then a rank raises and takes 0.6 s to end",
        program="clock-ahead",
        cage="clock",
        code=1,
        says=_BOOM,
        detect_s=SLOWLY_S,
        launchers=("script", "torchrun", "mpi", "smddp", "smp"),
    ),
    Fault(
        name="clock-back-pair",
        text="one of two ranks raises, its host's wall clock goes back by an hour, and its neighbour fails first",
        program="clock-back",
        per_host=2,
        cage="clock",
        code=1,
        says=_BOOM,
        detect_s=SLOWLY_S,
        launchers=("torchrun", "mpi", "smddp", "smp"),
    ),
    Fault(
        name="exits-3",
        text="a rank ends with 3",
        program="exits-3",
        code=3,
        says=("host {host}, {who}", "ended with code 3"),
    ),
    Fault(
        name="exits-143",
        text="a rank ends with 143, unasked",
        program="exits-143",
        code=143,
        says=("host {host}, {who}", "ended with code 143"),
    ),
    Fault(
        name="ends-early",
        text="a rank ends with 0 (os._exit) while the others train",
        program="ends-early",
        code=1,
        says=_EARLY,
        launchers=("torchrun", "mpi", "smddp", "smp", "jax"),
    ),
    Fault(
        name="fewer-steps",
        text="a rank has fewer steps than the others: it leaves the group and ends while they train",
        program="fewer-steps",
        code=1,
        says=_EARLY,
        launchers=("torchrun", "smddp", "smp", "jax"),
    ),
    Fault(
        name="other-size",
        text="a rank calls a collective with another size, and gloo aborts it",
        program="other-size",
        code=134,
        says=("terminate called after throwing an instance of 'gloo::EnforceNotMet'", "4 vs 1", "host {host}, {who}"),
        own=("gloo",),
        launchers=("torchrun",),
    ),
    Fault(
        name="rank-sigkill",
        text="SIGKILL of a rank",
        program="sigkill",
        code=137,
        says=("host {host}, {who}", "killed by SIGKILL"),
    ),
    Fault(
        name="rank-sigkill-in-step",
        text="SIGKILL of a rank in its part of a model, while the other one waits for its result",
        program="sigkill-in-step",
        code=137,
        says=("killed by SIGKILL", "host {host}, {who}"),
        launchers=("smp",),
    ),
    Fault(
        name="rank-sigsegv",
        text="SIGSEGV of a rank",
        program="sigsegv",
        code=139,
        says=("host {host}, {who}", "killed by SIGSEGV"),
    ),
    Fault(
        name="leaves-a-child",
        text="a rank raises; its child, in a session of its own, ignores SIGTERM",
        program="leaves-a-child",
        code=1,
        says=_BOOM,
        end_s=5.0,
    ),
    Fault(
        name="out-of-memory",
        text="a rank exceeds the memory limit of its control group (timed from its first byte)",
        program="eats-memory",
        cage="memory",
        code=137,
        says=("host {host}, {who}", "SIGKILL", "out-of-memory|out of memory"),
        detect_s=10.0,
        end_s=12.0,
    ),
    Fault(
        name="output-full",
        text="a rank raises where output/ is a full disk",
        program="raises",
        cage="full",
        code=1,
        says=_BOOM,
    ),
    Fault(
        name="output-full-healthy",
        text="no fault, where output/ is a full disk",
        steps=50,
        cage="full",
        detect_s=None,
        end_s=30.0,
    ),
    Fault(
        name="output-read-only",
        text="a rank raises where output/ is read-only",
        program="raises",
        cage="read-only",
        code=1,
        says=_BOOM,
    ),
    Fault(
        name="output-read-only-healthy",
        text="no fault, where output/ is read-only",
        steps=50,
        cage="read-only",
        detect_s=None,
        end_s=30.0,
    ),
    Fault(
        name="train-sigkill",
        text="SIGKILL of `train` on a follower",
        act="SIGKILL",
        code=VANISHED,
        says=_LOST,
        code_there=137,
        says_there=None,
    ),
    Fault(
        name="train-sigkill-leader",
        text="SIGKILL of `train` on the leader",
        act="SIGKILL",
        at="leader",
        code=VANISHED,
        says=_LOST,
        code_there=137,
        says_there=None,
    ),
    Fault(
        name="train-restarted-leader",
        text="SIGKILL of `train` on the leader, which is started again at once, as `docker run --restart` does",
        act="SIGKILL then start",
        at="leader",
        code=VANISHED,
        says=("host {host} vanished: " + REPLACED,),
        launchers=("script", "torchrun"),
    ),
    Fault(
        name="silent-after-a-cause",
        text="SIGSTOP of `train` on a follower, then a rank of the leader raises (TOOLKIT_RESTARTS=1)",
        program="raises-when-told",
        act="SIGSTOP last",
        at="leader",
        environ={"TOOLKIT_RESTARTS": "1"},
        code=1,
        says=_BOOM,
        detect_s=None,
        end_s=SILENT_S + 2.0,
        launchers=("script", "torchrun"),
    ),
    Fault(
        name="outage-at-the-end",
        text="all traffic of the leader is dropped for 5 s, and meanwhile a rank of the leader raises",
        program="raises",
        act="outage",
        at="leader",
        code=1,
        says=_BOOM,
        cage="network",
        outage_s=5.0,
        detect_s=SILENT_S,
        end_s=SILENT_S + 2.0,
        launchers=("script", "torchrun"),
    ),
    Fault(
        name="train-sigstop",
        text="SIGSTOP of `train` on a follower, SIGCONT when the others have ended",
        act="SIGSTOP",
        code=VANISHED,
        says=_SILENT,
        says_there=("vanished",),
        detect_s=SILENT_S,
        end_s=SILENT_S + 2.0,
    ),
    Fault(
        name="train-sigstop-leader",
        text="SIGSTOP of `train` on the leader, SIGCONT when the others have ended",
        act="SIGSTOP",
        at="leader",
        code=VANISHED,
        says=_SILENT,
        says_there=("vanished",),
        detect_s=SILENT_S,
        end_s=SILENT_S + 2.0,
    ),
    Fault(
        name="train-sigterm",
        text="SIGTERM to `train` on a follower",
        act="SIGTERM",
        code=143,
        says=("stopped by SIGTERM",),
    ),
    Fault(
        name="train-sigterm-leader",
        text="SIGTERM to `train` on the leader",
        act="SIGTERM",
        at="leader",
        code=143,
        says=("stopped by SIGTERM",),
    ),
    Fault(
        name="saves",
        text="SIGTERM to `train`; the script saves for 2 s and ends with 0",
        program="saves",
        act="SIGTERM",
        saved=True,
        end_s=8.0,
    ),
    Fault(
        name="saves-all",
        text="SIGTERM to every `train`, 20 ms apart, as platforms do; the script saves for 2 s and ends with 0",
        program="saves",
        act="SIGTERM all",
        saved=True,
        end_s=8.0,
    ),
    Fault(
        name="saves-all-twice",
        text="SIGTERM to every `train`, twice within milliseconds, as `timeout` and Slurm do; the script saves for 2 s",
        program="saves",
        act="SIGTERM twice all",
        saved=True,
        end_s=8.0,
    ),
    Fault(
        name="ignores-sigterm",
        text="SIGTERM to `train`; the script ignores it (grace 2 s)",
        program="ignores",
        act="SIGTERM",
        environ={"TOOLKIT_GRACE_S": "2"},
        code=143,
        says=("stopped by SIGTERM", "SIGKILL was needed"),
        end_s=5.0,
    ),
    Fault(
        name="sigterm-twice",
        text="SIGTERM to a follower's `train`, again 1 s later; the script ignores it (3 s of grace elsewhere)",
        program="ignores",
        act="SIGTERM twice",
        environ={"TOOLKIT_GRACE_S": "3"},
        code=143,
        says=("stopped by SIGTERM", "SIGKILL was needed|ended with code"),
        says_there=("stopped by SIGTERM", "SIGKILL came with a second signal"),
        end_there_s=3.0,
        end_s=6.0,
    ),
    Fault(
        name="sigterm-twice-leader",
        text="SIGTERM to the leader's `train`, again 1 s later; the script ignores it (3 s of grace elsewhere)",
        program="ignores",
        act="SIGTERM twice",
        at="leader",
        environ={"TOOLKIT_GRACE_S": "3"},
        code=143,
        says=("stopped by SIGTERM", "SIGKILL was needed|ended with code"),
        says_there=("stopped by SIGTERM", "SIGKILL came with a second signal"),
        end_there_s=3.0,
        end_s=6.0,
    ),
    Fault(
        name="killed-while-stopping",
        text="SIGTERM to the leader's `train`, SIGKILL 0.5 s later; the script saves for 2 s and ends with 0",
        program="saves",
        act="SIGTERM then SIGKILL",
        at="leader",
        code=143,
        says=("host {host} vanished while the job was stopping",),
        code_there=137,
        says_there=None,
        end_s=8.0,
        launchers=tuple(name for name in ALL if name != "jax"),
    ),
    Fault(
        name="killed-while-stopping-coordinator",
        text="the same; JAX's coordinator dies with the leader's rank, and JAX ends the ranks that save by SIGABRT",
        program="saves",
        act="SIGTERM then SIGKILL",
        at="leader",
        code=143,
        says=("stopped by SIGTERM", "killed by SIGABRT"),
        code_there=137,
        says_there=None,
        launchers=("jax",),
    ),
    Fault(
        name="cut-off",
        text="all traffic of a follower is dropped",
        act="cut",
        cage="network",
        code=VANISHED,
        says=_SILENT,
        says_there=("host algo-1 vanished", "nothing was heard of it"),
        detect_s=SILENT_S,
        end_s=SILENT_S + 2.0,
    ),
    Fault(
        name="link-cut",
        text="a proxy stops forwarding a follower's link",
        act="cut",
        cage="proxy",
        code=VANISHED,
        says=_SILENT,
        says_there=("host algo-1 vanished", "nothing was heard of it"),
        detect_s=SILENT_S,
        end_s=SILENT_S + 2.0,
    ),
    Fault(
        name="outage",
        text="all traffic of a follower is dropped for 6 s; the job must go on",
        act="outage",
        steps=500,
        cage="network",
        outage_s=6.0,
        detect_s=None,
        end_s=120.0,
        launchers=("script",),
    ),
    Fault(
        name="large-packets-lost",
        text="packets above 900 bytes to and from a follower are dropped, and a rank raises",
        program="raises-at-length",
        cage="small-packets",
        code=1,
        says=_BOOM,
        end_s=SILENT_S + 2.0,
        launchers=("script",),
    ),
    Fault(
        name="large-messages-lost",
        text="a proxy drops messages above 1.2 kB and all that follow on a follower's link, and a rank raises",
        program="raises-at-length",
        cage="small-messages",
        code=1,
        says=_BOOM,
        end_s=SILENT_S + 2.0,
        launchers=("script",),
    ),
    Fault(
        name="one-address",
        text="a follower's name resolves to the leader's address",
        starts="misnamed",
        cage="network",
        code=78,
        says=("hosts algo-1 and {host} both have the address",),
        end_s=30.0,
        detect_s=30.0,
        launchers=("script", "torchrun", "mpi"),
    ),
    Fault(
        name="other-documents",
        text="a follower has the job's TOOLKIT_JOB_SECRET and another hyperparameter",
        starts="other-documents",
        environ={"TOOLKIT_JOB_SECRET": "one"},
        code=78,
        says=("host {host} and host algo-1, the leader, are not of one job", "a hyperparameter differs"),
        end_s=30.0,
        detect_s=30.0,
        launchers=("script", "torchrun"),
    ),
    Fault(
        name="two-jobs",
        text="a follower starts 6 s late, while another job with the same hosts and ports starts its leader 6 s late",
        starts="beside-another-job",
        steps=50,
        detect_s=None,
        end_s=60.0,
        launchers=("script", "torchrun"),
    ),
    Fault(name="late", text="a host starts 3 s late", starts="late", steps=50, detect_s=None, end_s=30.0),
    Fault(
        name="absent",
        text="a host never starts (TOOLKIT_JOIN_S=3)",
        starts="never",
        environ={"TOOLKIT_JOIN_S": "3"},
        code=VANISHED,
        says=("host {host}", "waited 3 s in vain"),
        detect_s=4.5,
        end_s=5.0,
    ),
    Fault(
        name="rank-sigstop",
        text="SIGSTOP of a rank (TOOLKIT_STALL_S=4)",
        program="sigstop",
        environ={"TOOLKIT_STALL_S": "4"},
        code=HUNG,
        says=("TOOLKIT_STALL_S", "{who} is stopped (SIGSTOP) on host {host}"),
        detect_s=10.0,
        end_s=15.0,
        stall=True,
    ),
    Fault(
        name="hangs",
        text="a rank never calls the collective (TOOLKIT_STALL_S=4)",
        program="hangs",
        environ={"TOOLKIT_STALL_S": "4"},
        code=HUNG,
        says=("TOOLKIT_STALL_S", "on host {host}|{who} at "),
        detect_s=10.0,
        end_s=15.0,
        stall=True,
    ),
)
# Whose words they are, nobody's cause.
COLLATERAL = (
    "closed by peer",
    "reset by peer",
    "gloo",
    "another host failed",
    "failed, too",
    "Broken pipe",
    "after train had told",
    "ChildFailedError",
    "MPI_ABORT",
    "MPI_ERR",
)
BY_NAME = {fault.name: fault for fault in FAULTS}
