"""Finds the script of a job that does not name one."""

from pathlib import Path

from toolkit import folders

ENDINGS = (".py", ".sh")
NEVER = ("setup.py", "conftest.py")


def only_script(folder: Path) -> str | None:
    """Return the name of the only Python or shell script directly in *folder*, None if there is not exactly one."""
    try:
        names = [name for name in folders.names(folder) if name.endswith(ENDINGS)]
        files = [name for name in names if folders.is_file(folder / name, folders.as_absent)]
    except OSError:
        return None
    scripts = [name for name in files if name not in NEVER and not name.startswith((".", "_"))]
    return scripts[0] if len(scripts) == 1 else None
