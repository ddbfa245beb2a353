"""Runs at the start of every Python below `train` (its folder leads PYTHONPATH); helps a rank without touching its
code.

Goals: cost next to nothing, work on any Python 3, never be noticed. It removes its folder from sys.path, does its
work, and gives way to the sitecustomize that would have run without it. `python -I` and `-E` never see it.
TOOLKIT_RANK_HOOK=off leaves it out altogether.

What it does: torch 2.13 with gloo on Python 3.11 aborts 30 to 40 % of finished runs at interpreter exit ("terminate
called without an active exception", SIGABRT): the thread pt_gloo_runloop drops its last Work while the interpreter is
being finalised, needs the GIL in a destructor, and is unwound inside a noexcept function. It needs a moment before
the finalisation: the first registered atexit function runs last, and waits 0.1 s if such a thread lives (measured: 0
of 40 runs abort). A SIGABRT of any other origin is untouched.
"""


def _give_way() -> None:
    import os
    import sys

    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != here]


def _next() -> None:
    import importlib.util
    import sys

    ours = sys.modules.pop("sitecustomize", None)
    spec = importlib.util.find_spec("sitecustomize")
    if spec is None or spec.loader is None:
        if ours is not None:
            sys.modules["sitecustomize"] = ours
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


def _let_gloo_finish() -> None:
    import os
    import sys
    import time

    if "torch" not in sys.modules:
        return
    try:
        for thread in os.listdir("/proc/self/task"):
            with open("/proc/self/task/%s/comm" % thread) as comm:
                if comm.read().strip() == "pt_gloo_runloop":
                    time.sleep(0.1)
                    return
    except OSError:
        time.sleep(0.1)


def _start() -> None:
    import atexit

    _give_way()
    atexit.register(_let_gloo_finish)
    _next()


_start()
