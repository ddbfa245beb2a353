"""What a person may name as a file, and what is there."""

from pathlib import Path


def is_file(path: Path) -> bool:
    """True if *path* is a file; false, too, for what can be no path (a name too long, a NUL).

    Path.is_file raises for a name of more than 255 bytes.
    """
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False
