"""The jobs that tests let ModelTrainer send, all by one process of the SDK, whose import takes seconds."""

from typing import Any

from tests.train.base import SEES

HYPERPARAMETERS = {"lr": 0.1, "name": "x y", "flag": True, "none": None, "list": [1, "a"], "deep": {"a": 1}}
SAVES = """
import os, signal, time
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
print("ready", flush=True)
signal.sigwait({signal.SIGTERM})
print("heard", flush=True)
open(os.path.join(os.environ["SM_MODEL_DIR"], "saved"), "w").close()
"""
FILES = {"train.py": SEES}
TOOLKIT: dict[str, dict[str, Any]] = {
    "options": {
        "files": {**FILES, "requirements.txt": "one\n"},
        "source": {"requirements": "auto", "args": ["--more", 1, "a b", "$HOME"]},
        "trainer": {"hyperparameters": HYPERPARAMETERS, "environment": {"GREETING": 'it\'s "one" $HOME'}},
    },
    "named": {
        "files": {**FILES, "deps/gpu.txt": "two\n"},
        "source": {"requirements": "deps/gpu.txt"},
    },
    "torchrun": {"files": FILES, "distributed": {"distribution": "torch_distributed", "processes_per_host": 2}},
    "of_version_2": {
        "files": FILES,
        "distributed": {"distribution": {"smdistributed": {"dataparallel": {"enabled": True}}}},
    },
    "unknown": {"files": FILES, "distributed": {"distribution": "torchrum"}},
    "raises": {"files": {"train.py": "def step():\n    raise ValueError('loss is nan')\nstep()\n"}},
    "saves": {"files": {"train.py": SAVES}},
    "missing_requirements": {"files": FILES, "source": {"requirements": "nix.txt"}},
    "with_a_command": {"files": FILES, "source": {"command": "python x.py"}},
    "negative": {"files": FILES, "distributed": {"processes_per_host": 0}},
    "unknown_option": {"files": FILES, "distributed": {"processes": 2}},
}
JOBS: dict[str, dict[str, Any]] = {
    **{name: {"how": "toolkit", **job} for name, job in TOOLKIT.items()},
    "driver_options": {
        "how": "basic",
        "files": FILES,
        "trainer": {"hyperparameters": HYPERPARAMETERS, "environment": {"GREETING": 'it\'s "one" $HOME'}},
    },
    "driver_saves": {"how": "basic", "files": {"train.py": SAVES}},
}
