"""The command of a process that runs one of the toolkit's own modules beside the script."""

import site
from pathlib import Path

import toolkit

# `python -m` with one more folder to import from. runpy, as `-m` itself.
STARTER = (
    "import runpy, sys; sys.path.append(sys.argv[1]); del sys.argv[:2];"
    " runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
)


def own_module(interpreter: str, name: str) -> tuple[str, ...]:
    """Return the words that run module *name* of the toolkit; its arguments follow.

    The process imports nothing from the job's PYTHONPATH or code folder (`-I`). That hides the user's own
    site-packages, too, where pip installs for a user who may not write into Python's: the toolkit is then found by its
    folder.
    """
    folder = Path(toolkit.__file__).parent.parent
    if folder != Path(site.USER_SITE or ""):
        return (interpreter, "-I", "-m", name)
    return (interpreter, "-I", "-c", STARTER, str(folder), name)
