"""uv's words as uv 0.13.9 and 0.6.0 wrote them."""

import pytest

from toolkit.train.verdict.pip import read_reason

ZEROS = "0" * 64
NOT_PIPS_OWN = "process didn't exit successfully: `/usr/bin/git fetch --force 'ssh://git@h:9/x.git'` (exit status: 128)"
CASES = {
    "no version, 0.13": (
        "error: No solution found when resolving dependencies\n  cause: Because there is no version of a==99 and you"
        " require a==99, we can conclude that your requirements are unsatisfiable.\n",
        "No solution found when resolving dependencies: Because there is no version of a==99 and you require a==99, we"
        " can conclude that your requirements are unsatisfiable.",
    ),
    "no version, 0.6": (
        "  × No solution found when resolving dependencies:\n  ╰─▶ Because there is no version of a==99 and you\n"
        "      require a==99, we can conclude that your requirements are unsatisfiable.\n",
        "No solution found when resolving dependencies: Because there is no version of a==99 and you require a==99, we"
        " can conclude that your requirements are unsatisfiable.",
    ),
    "conflict": (
        "error: No solution found when resolving dependencies\n  cause: Because all versions of two depend on"
        " needed==2.0 and all versions of one depend on needed==1.0, they are incompatible.\n"
        "         And because you require one and two, we can conclude that your requirements are unsatisfiable.\n",
        "No solution found when resolving dependencies: Because all versions of two depend on needed==2.0 and all"
        " versions of one depend on needed==1.0, they are incompatible. And because you require one and two, we can"
        " conclude that your requirements are unsatisfiable.",
    ),
    "no connection, 0.13": (
        "error: Request failed after 3 retries in 6.8s\n  cause: Failed to fetch: http://h:9/simple/a/\n"
        "  cause: error sending request for url (http://h:9/simple/a/)\n  cause: client error (Connect)\n"
        "  cause: tcp connect error\n  cause: Connection refused (os error 111)\n\nhint: x\n",
        "Request failed after 3 retries in 6.8s: Failed to fetch: http://h:9/simple/a/: Connection refused (os error"
        " 111)",
    ),
    "no connection, 0.6": (
        "error: Failed to fetch: `http://h:9/simple/a/`\n  Caused by: Request failed after 3 retries\n"
        "  Caused by: client error (Connect)\n  Caused by: Connection refused (os error 111)\n",
        "Failed to fetch: `http://h:9/simple/a/`: Request failed after 3 retries: Connection refused (os error 111)",
    ),
    "hash, 0.13": (
        "Resolved 1 package in 3ms\nerror: Failed to download `a==1.0`\n  cause: Hash mismatch for `a==1.0`\n\n"
        f"         Expected:\n           sha256:{ZEROS}\n\n         Computed:\n           sha256:88\n",
        "a hash of requirements.txt differs from the package's: Failed to download `a==1.0`: Hash mismatch for"
        f" `a==1.0` Expected: sha256:{ZEROS} Computed: sha256:88",
    ),
    "hash, 0.6": (
        "  × Failed to download `a==1.0`\n  ╰─▶ Hash mismatch for `a==1.0`\n\n"
        f"      Expected:\n        sha256:{ZEROS}\n\n      Computed:\n        sha256:88\n",
        "a hash of requirements.txt differs from the package's: Failed to download `a==1.0`: Hash mismatch for"
        f" `a==1.0` Expected: sha256:{ZEROS} Computed: sha256:88",
    ),
    "no hash": (
        "error: In `--require-hashes` mode, all requirements must have a hash, but none were provided for: a==1.0\n",
        "In `--require-hashes` mode, all requirements must have a hash, but none were provided for: a==1.0",
    ),
    "build, 0.13": (
        "   Building file:///x/slow\nerror: The build backend returned an error\n"
        "  cause: Call to `backend.build_wheel` failed (exit status: 1)\n\n         [stderr]\n         Traceback:\n"
        "         RuntimeError: no compiler here\n",
        "Failed to build file:///x/slow; the build said last: RuntimeError: no compiler here",
    ),
    "build, 0.6": (
        "   Building file:///x/slow\nerror: The build backend returned an error\n"
        "  Caused by: Call to `backend.build_wheel` failed (exit status: 1)\n\n[stderr]\ncc ...\n"
        "error: command 'gcc' failed: No such file or directory\n\nhint: This usually indicates a problem.\n",
        "Failed to build file:///x/slow; the build said last: error: command 'gcc' failed: No such file or directory",
    ),
    "git, 0.13": (
        "   Updating ssh://git@h:9/x.git (HEAD)\nerror: Git operation failed\n  cause: failed to clone into: /tmp/x\n"
        f"  cause: {NOT_PIPS_OWN}\n         --- stderr\n         ssh: connect to host h port 9: Connection refused\n"
        "         fatal: Could not read from remote repository.\n\n         Please make sure you have rights\n",
        "git fetch of ssh://git@h:9/x.git failed: ssh: connect to host h port 9: Connection refused",
    ),
    "git, 0.6": (
        "   Updating file:///x/nogit (HEAD)\nerror: Git operation failed\n  Caused by: failed to clone into: /tmp/x\n"
        f"  Caused by: {NOT_PIPS_OWN}\n--- stderr\nfatal: '/x/nogit' does not appear to be a git repository\n"
        "fatal: Could not read from remote repository.\n",
        "git fetch of file:///x/nogit failed: fatal: '/x/nogit' does not appear to be a git repository",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_reason_of_uv_is_read(case: str) -> None:
    output, reason = CASES[case]

    assert read_reason(output.encode()) == reason


def test_a_line_of_pip_that_looks_alike_stays_pips() -> None:
    output = (
        "  error: subprocess-exited-with-error\n  × Getting requirements did not run.\nERROR: Failed to build 'x'\n"
    )

    assert read_reason(output.encode()).startswith("Failed to build 'x'")
