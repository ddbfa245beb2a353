"""The command of a process that runs one of the toolkit's own modules beside the script."""

import site
from pathlib import Path

import toolkit

# `python -m` with one more folder to import from, and the toolkit of that folder where another one is installed. runpy,
# as `-m` itself.
STARTER = (
    "import runpy, sys; sys.path.insert(0, sys.argv[1]); import toolkit; sys.path.append(sys.path.pop(0));"
    " del sys.argv[:2]; runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
)


def own_module(interpreter: str, name: str) -> tuple[str, ...]:
    """Return the words that run module *name* of the toolkit; its arguments follow.

    The process imports nothing from the job's PYTHONPATH or code folder (`-I`). That hides two places where pip may
    have installed the toolkit: the user's own site-packages, and a folder of `pip install --target` that PYTHONPATH
    names. There, and where it is not installed but used from its sources, it is found by its folder.
    """
    folder = Path(toolkit.__file__).parent.parent
    if str(folder) in site.getsitepackages():
        return (interpreter, "-I", "-m", name)
    return (interpreter, "-I", "-c", STARTER, str(folder), name)
