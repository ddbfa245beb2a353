"""The git commit of a folder, and a digest of what is not committed there."""

import os
from hashlib import sha256
from pathlib import Path

from toolkit import folders

WITHIN_S = 5.0
# A repository may name programs that git runs, and may belong to another user: neither runs nor hinders here.
OPTIONS = ("-c", "safe.directory=*", "-c", "core.fsmonitor=false", "-c", "core.quotePath=true", "--no-optional-locks")


def find_commit(folder: Path, environ: dict[str, str]) -> str:
    """Return "COMMIT", or "COMMIT+DIGEST" where *folder* has changes or new files; "" if it is in no repository, or
    there is no git that answers."""
    if not any(folders.exists(parent / ".git", folders.as_absent) for parent in (folder, *folder.parents)):
        return ""
    commit = _ask(folder, environ, "rev-parse", "--verify", "HEAD")
    changes = _ask(folder, environ, "diff", "--no-ext-diff", "--no-textconv", "--binary", "HEAD", "--", ".")
    new_files = _ask(folder, environ, "ls-files", "--others", "--exclude-standard", "-z", "--", ".")
    if commit is None or changes is None or new_files is None:
        return ""
    digest = sha256(changes + b"\0" + new_files).hexdigest()[:16] if changes or new_files else ""
    return commit.decode("ascii", "replace").strip() + (f"+{digest}" if digest else "")


def _ask(folder: Path, environ: dict[str, str], *words: str) -> bytes | None:
    """Return what git says, None if it cannot be asked."""
    import subprocess  # 6 ms, which only a source in a repository pays.

    plain = {name: value for name, value in environ.items() if not name.startswith("GIT_")}
    try:
        answer = subprocess.run(
            ("git", *OPTIONS, *words),
            cwd=folder,
            env={**plain, "LC_ALL": "C", "PATH": plain.get("PATH", os.defpath)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=WITHIN_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout if answer.returncode == 0 else None
