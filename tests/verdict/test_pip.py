import pytest

from toolkit.verdict.pip import cause

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
    ("said", "reason"),
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
    ],
)
def test_the_reason_is_the_last_that_says_something(said: str, reason: str) -> None:
    assert cause(said.encode()) == reason


@pytest.mark.parametrize("end", range(0, len(BUILD.encode()), 7))
def test_a_tail_cut_anywhere_is_no_fault(end: int) -> None:
    cause(BUILD.encode()[end:])
    cause(BUILD.encode()[:end])
