"""Is a failure worth another attempt? The whole table, and what an attempt costs."""

import pytest

from toolkit.job.restart import Budget, Failure, Restart, Steps, news, times

SCRIPT = "ExecuteUserScriptError"
SOME = Steps(seen=True, highest=7)
LEFT = Budget(allowed=3, used=2)
NONE_LEFT = Budget(allowed=3, used=3)


def failed(kind: str = SCRIPT, exit_code: int = 1, **more: object) -> Failure:
    return Failure(kind=kind, exit_code=exit_code, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("failure", "steps", "budget", "refusal"),
    [
        (failed(), SOME, LEFT, ""),
        (failed(), Steps(seen=True), LEFT, ""),
        (failed(exit_code=139), SOME, LEFT, ""),
        (failed(exit_code=75), SOME, LEFT, ""),
        (failed("Hang", 124), SOME, LEFT, ""),
        # Nothing was done that could be gone on with: an import that fails, a wrong argument.
        (failed(), Steps(), LEFT, "no step was seen"),
        (failed("Hang", 124), Steps(), LEFT, "no step was seen"),
        (failed(preempted=True), Steps(), LEFT, "no step was seen"),
        (failed(began=False), SOME, LEFT, "the ranks had not been started on every host"),
        # Wrong documents, faults of ours, installs, rules, vanished hosts, needs that were not met.
        (failed("ClientError", 78), SOME, LEFT, "ClientError would come again"),
        (failed("Framework Error", 70), SOME, LEFT, "Framework Error would come again"),
        (failed("InstallRequirementsError"), SOME, LEFT, "InstallRequirementsError would come again"),
        (failed("HealthRule", 93), SOME, LEFT, "HealthRule would come again"),
        (failed("HealthRule", 124), SOME, LEFT, "HealthRule would come again"),
        (failed("PlatformError", 75), SOME, LEFT, "PlatformError would come again"),
        (failed("", 1), SOME, LEFT, "this end would come again"),
        (failed(gone=("algo-2",)), SOME, LEFT, "host algo-2 is gone"),
        (failed(stopped=True), SOME, LEFT, "a stop was requested"),
        # The script's own word.
        (failed(exit_code=78), SOME, LEFT, "exit code 78 says"),
        (failed(exit_code=93), SOME, LEFT, "exit code 93 says"),
        # The budget, and preemptions, which are free while the job moves on.
        (failed(), SOME, NONE_LEFT, "all of TOOLKIT_RESTARTS=3 are used up"),
        (failed(preempted=True), SOME, NONE_LEFT, ""),
        (failed(preempted=True), SOME, Budget(allowed=3, used=3, highest=6), ""),
        (failed(preempted=True), SOME, Budget(allowed=3, used=3, highest=7), "all of TOOLKIT_RESTARTS=3 are used up"),
        (failed(preempted=True), Steps(seen=True), NONE_LEFT, "all of TOOLKIT_RESTARTS=3 are used up"),
    ],
)
def test_what_is_worth_another_round(failure: Failure, steps: Steps, budget: Budget, refusal: str) -> None:
    reason = budget.refusal(failure, steps)

    assert reason.startswith(refusal) if refusal else reason == ""


def test_a_restart_costs_one_and_a_preemption_that_moved_on_none() -> None:
    budget = Budget(allowed=9)

    used = []
    for preempted, highest in ((False, 5), (True, 8), (True, 8), (True, None), (False, 2), (True, 9)):
        budget = budget.after(failed(preempted=preempted), Steps(seen=True, highest=highest))
        used.append(budget.used)

    assert used == [1, 1, 2, 3, 4, 4]
    assert budget.highest == 9


def test_nobody_restarts_a_job_for_ever_that_gets_nowhere() -> None:
    budget, attempts = Budget(allowed=2), 0

    while not budget.refusal(failed(preempted=True, exit_code=143), SOME):
        budget = budget.after(failed(preempted=True, exit_code=143), SOME)
        attempts += 1

    assert attempts == 3


def test_how_far_several_hosts_came_is_how_far_the_first_of_them_did() -> None:
    assert Steps().and_those(Steps(seen=True)) == Steps(seen=True)
    assert Steps(seen=True, highest=3).and_those(Steps(seen=True, highest=5)) == Steps(seen=True, highest=5)
    assert Steps(seen=True, highest=0).and_those(Steps()) == Steps(seen=True, highest=0)


@pytest.mark.parametrize(
    ("restart", "hosts", "text"),
    [
        (
            Restart(attempt=1, host="algo-2", process="rank 3", message="boom\nmore"),
            2,
            "restart (1 of 2) after rank 3 of host algo-2 failed: boom; attempt 1 begins: the ranks of all hosts "
            "are started again",
        ),
        (
            Restart(attempt=4, host="algo-1", message="", exit_code=143, counted=False),
            1,
            "restart (not counted, a preemption; 1 of 2 used) after host algo-1 failed: ended with 143; attempt 4 "
            "begins: the ranks are started again",
        ),
        (
            Restart(attempt=1, host="", message="no rank has computed anything for 2 s"),
            1,
            "restart (1 of 2): no rank has computed anything for 2 s; attempt 1 begins: the ranks are started again",
        ),
    ],
)
def test_the_log_says_why_and_which(restart: Restart, hosts: int, text: str) -> None:
    assert news(restart, 1, 2, hosts) == text


def test_the_number_of_restarts_is_said_where_there_were_any() -> None:
    assert [times(count) for count in (0, 1, 2)] == ["", "after 1 restart", "after 2 restarts"]
