"""Looks whether the model folder holds what TensorFlow Serving loads: <a number>/saved_model.pb."""

from pathlib import Path

from toolkit import folders

BUNDLES = ("saved_model.pb", "saved_model.pbtxt")


def warnings(folder: Path) -> tuple[str, ...]:
    """Return what SageMaker's TensorFlow Serving containers would miss in *folder*, as sentences; none if it is fine.

    They are the warnings of AWS's TensorFlow images (sagemaker-tensorflow-training 20.4), in other words.
    """
    unreadable: list[OSError] = []
    files = [entry for entry in folders.walk(folder, unreadable.append) if not entry.is_dir(follow_symlinks=False)]
    if unreadable:
        error = unreadable[0]
        return (f"{error.filename}: cannot be read ({error.strerror}): whether {folder} holds a SavedModel is unknown",)
    has_files = bool(files)
    bundles = list(dict.fromkeys(Path(entry.path).parent for entry in files if entry.name in BUNDLES))
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
