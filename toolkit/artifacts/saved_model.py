"""Looks whether the model folder holds what TensorFlow Serving loads: <a number>/saved_model.pb."""

import os
from pathlib import Path

BUNDLES = ("saved_model.pb", "saved_model.pbtxt")


def warnings(folder: Path) -> tuple[str, ...]:
    """Return what SageMaker's TensorFlow Serving containers would miss in *folder*, as sentences; none if it is fine.

    They are the warnings of AWS's TensorFlow images (sagemaker-tensorflow-training 20.4), in other words.
    """
    has_files, bundles = False, []
    for path, _, files in os.walk(folder):
        has_files = has_files or bool(files)
        if any(name in BUNDLES for name in files):
            bundles.append(Path(path))
    if not has_files:
        return (f"{folder} is empty: the job leaves no model. Save it in the folder of SM_MODEL_DIR",)
    if not bundles:
        return (
            f"no SavedModel below {folder}: TensorFlow Serving cannot load what is there. Save one for it with"
            f' model.export("{folder}/1") (Keras 3) or tf.saved_model.save(model, "{folder}/1")',
        )
    return tuple(
        f"the SavedModel in {bundle} is not in a folder whose name is a number: TensorFlow Serving does not load it."
        f" Save it in {folder}/1"
        for bundle in bundles
        if not bundle.name.isdigit()
    )
