import pytest

from toolkit.train.verdict.pip import read_reason

BUILD = """\
  error: subprocess-exited-with-error

  × Preparing metadata (pyproject.toml) did not run successfully.
  │ exit code: 1
  ╰─> [2 lines of output]
      error: command 'gcc' failed: No such file or directory

      [end of output]

  note: This error originates from a subprocess, and is likely not a problem with pip.
"""


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ("", ""),
        ("Collecting numpy\n", ""),
        (
            "ERROR: Could not find a version that satisfies the requirement a==1 (from versions: none)\n"
            "ERROR: No matching distribution found for a==1\n",
            "No matching distribution found for a==1",
        ),
        (
            "WARNING: Retrying (Retry(total=0, connect=None, read=None, redirect=None, status=None)) after connection "
            "broken by 'NewConnectionError('<pip._vendor.urllib3.connection.HTTPSConnection object at 0x7f0>: Failed "
            "to establish a new connection: [Errno -3] Temporary failure in name resolution')': /simple/a/\n"
            "ERROR: Could not find a version that satisfies the requirement a==1 (from versions: none)\n"
            "ERROR: No matching distribution found for a==1\n",
            "No matching distribution found for a==1; pip could not reach its index: Failed to establish a new "
            "connection: [Errno -3] Temporary failure in name resolution",
        ),
        (
            "WARNING: Retrying (Retry(total=0)) after connection broken by 'NameResolutionError(\"HTTPSConnection("
            "host='example.invalid', port=443): Failed to resolve 'example.invalid' ([Errno -3] Temporary failure in "
            "name resolution)\")': /simple/a/\nERROR: No matching distribution found for a\n",
            "No matching distribution found for a; pip could not reach its index: Failed to resolve 'example.invalid' "
            "([Errno -3] Temporary failure in name resolution)",
        ),
        ("ERROR: no room\nERROR: Exception:\nTraceback (most recent call last):\n", "no room"),
        ("\x1b[31mERROR: Cannot install a and b\x1b[0m\n\n", "Cannot install a and b"),
        (
            f"{BUILD}error: metadata-generation-failed\n\n"
            "× Encountered error while generating package metadata.\n╰─> slow\n\nnote: This is an issue\n",
            "Encountered error while generating package metadata: slow; "
            "the build said last: error: command 'gcc' failed: No such file or directory",
        ),
        (
            f"{BUILD}error: metadata-generation-failed\n\n"
            "Encountered error while generating package metadata.\n\nslow\n\nnote: This is an issue\n",
            "Encountered error while generating package metadata: slow; "
            "the build said last: error: command 'gcc' failed: No such file or directory",
        ),
        (
            f"{BUILD}  ERROR: Failed building wheel for slow\n"
            "ERROR: Could not build wheels for slow, which is required to install pyproject.toml-based projects\n",
            "Could not build wheels for slow, which is required to install pyproject.toml-based projects; "
            "the build said last: error: command 'gcc' failed: No such file or directory",
        ),
        (
            "error: externally-managed-environment\n\n× This environment is externally managed\n"
            "╰─> To install Python packages system-wide, try apt install\n    python3-xyz.\n",
            "This environment is externally managed: To install Python packages system-wide, try apt install",
        ),
        ("error: some-new-code\n", "some-new-code"),
        (
            "Collecting one\nProcessing ./slow\n  Preparing metadata (pyproject.toml): started\n"
            "error: metadata-generation-failed\n\n× Encountered error while generating package metadata.\n"
            "╰─> See above for output.\n\nnote: This is an issue with the package mentioned above, not pip.\n",
            "Encountered error while generating package metadata: ./slow",
        ),
    ],
    ids=[
        "silence",
        "no error",
        "the last of two",
        "no network",
        "no network, pip 26",
        "pip's own fault",
        "colours",
        "a build",
        "a build without Unicode",
        "an older pip's build",
        "a managed environment",
        "a code alone",
        "an older pip that names no package",
    ],
)
def test_the_reason_is_the_last_that_says_something(output: str, reason: str) -> None:
    assert read_reason(output.encode()) == reason


@pytest.mark.parametrize("end", range(0, len(BUILD.encode()), 7))
def test_a_tail_cut_anywhere_is_no_fault(end: int) -> None:
    read_reason(BUILD.encode()[end:])
    read_reason(BUILD.encode()[:end])


GIT = """\
  Running command git {command} --quiet {source}
{said}
  error: subprocess-exited-with-error

  × git {command} --quiet {source} did not run successfully.
  │ exit code: 128
  ╰─> {see}

  note: This error originates from a subprocess, and is likely not a problem with pip.
{last}
"""
OLD = "error: subprocess-exited-with-error\n\n× git {command} -q x did not run successfully.\n│ exit code: 128\n╰─> See"
NEW = "ERROR: Failed to build 'git+https://x' when git {command} -q x"
SSH = "  {}\n  fatal: Could not read from remote repository.\n\n  Please make sure you have the correct access rights"


@pytest.mark.parametrize("last", [OLD, NEW], ids=["pip 23", "pip 26"])
@pytest.mark.parametrize(
    ("command", "output", "reason"),
    [
        (
            "clone",
            "  fatal: '/x' does not appear to be a git repository",
            "fatal: '/x' does not appear to be a git repository",
        ),
        (
            "clone",
            SSH.format("ssh: connect to host h port 22: Connection refused"),
            "ssh: connect to host h port 22: Connection refused",
        ),
        (
            "clone",
            SSH.format("git@github.com: Permission denied (publickey)."),
            "git@github.com: Permission denied (publickey).",
        ),
        ("clone", SSH.format("Host key verification failed."), "Host key verification failed."),
        (
            "clone",
            "  remote: Repository not found.\n  fatal: repository 'https://h/x.git/' not found",
            "remote: Repository not found.; fatal: repository 'https://h/x.git/' not found",
        ),
        (
            "clone",
            "  fatal: could not read Username for 'https://h': terminal prompts disabled",
            "fatal: could not read Username for 'https://h': terminal prompts disabled",
        ),
        (
            "checkout",
            "  error: pathspec 'v9' did not match any file(s) known to git",
            "error: pathspec 'v9' did not match any file(s) known to git",
        ),
        (
            "reset",
            "  fatal: ambiguous argument 'v9': unknown revision or path not in the working tree.",
            "fatal: ambiguous argument 'v9': unknown revision or path not in the working tree.",
        ),
        ("submodule", "", ""),
    ],
)
def test_the_reason_of_a_package_that_git_cannot_fetch_is_what_git_said(
    command: str, output: str, reason: str, last: str
) -> None:
    see = "No available output." if last == NEW else "See above for output."
    text = GIT.format(
        command=command, source="https://h/x.git", said=output, see=see, last=last.format(command=command)
    )
    collecting = b"Collecting git+https://h/x.git@v9 (from -r requirements.txt (line 1))\n"

    error = f"git {command} of git+https://h/x.git@v9 failed" + (f": {reason}" if reason else "")

    assert read_reason(text.encode(), collecting) == error
    assert read_reason(collecting + text.encode()) == error


CONFLICT = "ERROR: Cannot install a and b because these package versions have conflicting dependencies."
CONFLICT_TOLD = """
The conflict is caused by:
    a 1.0 depends on c==1.0
    b 1.0 depends on c==2.0

To fix this you could try to:
1. loosen the range of package versions you've specified

"""


def test_a_conflict_names_the_packages_that_contradict_each_other() -> None:
    last = "ERROR: ResolutionImpossible: for help visit https://pip.pypa.io/x\n"
    reason = (
        "Cannot install a and b because these package versions have conflicting dependencies:"
        " a 1.0 depends on c==1.0; b 1.0 depends on c==2.0"
    )

    assert read_reason(f"{CONFLICT}\n{last}".encode(), CONFLICT_TOLD.encode()) == reason
    assert read_reason(f"{CONFLICT}\n{CONFLICT_TOLD}{last}".encode()) == reason


def test_a_hash_that_differs_names_its_package() -> None:
    output = (
        "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE. If you have updated ... carefully.\n"
        "    c==1.0 from https://h/c.whl (from -r requirements.txt (line 1)):\n"
        "        Expected sha256 0000\n             Got        d445\n\n"
    )
    missing = (
        "ERROR: Hashes are required in --require-hashes mode, but they are missing from some requirements. Here is"
        " a list of those ... tampering:\n    c==1.0 --hash=sha256:d445\n"
    )

    assert read_reason(output.encode()) == (
        "a hash of requirements.txt differs from the package's: c==1.0 from https://h/c.whl (from -r requirements.txt"
        " (line 1)): Expected sha256 0000; Got d445"
    )
    assert read_reason(missing.encode()) == (
        "Hashes are required in --require-hashes mode, but they are missing from some requirements: c==1.0"
        " --hash=sha256:d445"
    )


def test_a_backend_that_is_missing_and_a_project_that_setuptools_refuses_say_why() -> None:
    backend = (
        "  error: backend-unavailable\n\n  × Cannot import build backend 'setuptools.build_meta'.\n"
        "  ╰─> ModuleNotFoundError: No module named 'setuptools'\n\n  note: not a problem with pip.\n"
        "ERROR: Failed to build 'file:///x' when calling build backend hook get_requires_for_build_wheel\n"
    )
    flat = BUILD.replace(
        "error: command 'gcc' failed: No such file or directory\n",
        "error: Multiple top-level packages discovered in a flat-layout: ['a', 'b'].\n\n      See the docs.\n",
    )

    assert read_reason(backend.encode()).endswith(
        "; Cannot import build backend 'setuptools.build_meta': ModuleNotFoundError: No module named 'setuptools'"
    )
    assert read_reason(f"{flat}ERROR: Failed to build 'flat'\n".encode()).endswith(
        "the build said last: error: Multiple top-level packages discovered in a flat-layout: ['a', 'b']."
    )
