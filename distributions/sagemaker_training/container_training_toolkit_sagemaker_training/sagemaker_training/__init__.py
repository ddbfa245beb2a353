"""The import name of AWS's sagemaker-training, over container-training-toolkit (docs/sagemaker-training.md).

Names and behaviour are those of sagemaker-training 5.1.4; the work is the toolkit's. Where sagemaker-training itself is
installed, Python imports that one: this package stands last on sys.path.
"""

import os
from importlib.util import find_spec

__version__ = "0.1.0"

_found = find_spec("toolkit")
if _found is not None and not os.path.exists(os.path.join(os.path.dirname(_found.origin or ""), "exit_codes.py")):
    raise ImportError(
        f"sagemaker_training ({__file__}): expected the package toolkit of container-training-toolkit, found another"
        f" one, {_found.origin or 'a folder without __init__.py'}, before it on sys.path. Give that one another name"
    )

import toolkit  # noqa: E402 - not before it is known whose it is

if toolkit.__version__ != __version__:
    raise ImportError(
        f"sagemaker_training ({__file__}): expected container-training-toolkit {__version__}, found"
        f" {toolkit.__version__}. Install container-training-toolkit-sagemaker-training=={toolkit.__version__}"
    )
