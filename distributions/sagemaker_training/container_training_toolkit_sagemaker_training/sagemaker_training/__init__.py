"""The import name of AWS's sagemaker-training, over container-training-toolkit (docs/sagemaker-training.md).

Names and behaviour are those of sagemaker-training 5.1.4; the work is the toolkit's. Where sagemaker-training itself is
installed, Python imports that one: this package stands last on sys.path.
"""

import toolkit

__version__ = "0.1.0"

if toolkit.__version__ != __version__:
    raise ImportError(
        f"sagemaker_training ({__file__}): expected container-training-toolkit {__version__}, found"
        f" {toolkit.__version__}. Install container-training-toolkit-sagemaker-training=={toolkit.__version__}"
    )
