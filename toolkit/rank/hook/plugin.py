"""Runs a framework plug-in, SAGEMAKER_TRAINING_MODULE=module:function, as sagemaker-training 5.1.4 runs one.

Started by `train` as `python plugin.py MODULE FUNCTION`, in train's own folder. The function gets no arguments. Logging
is configured once the module is imported, so that a framework may configure it first.

An exception ends the process with its errno, else 1; a ClientError of sagemaker_training's with the script's own code.
It writes plugin.json to TOOLKIT_STATUS_FOLDER: the kind of the failure and the text that sagemaker-training would have
written, which `train` reports (train/plugin.py). A failure file that the plug-in wrote itself is kept.
"""

import importlib
import logging
import os
import sys
import traceback

NAME = "plugin.json"
FORMAT = "%(asctime)s %(name)-12s %(levelname)-8s %(message)s"
LIBRARIES = ("boto3", "s3transfer", "botocore")
# A traceback that contains one of these is a fault of the SageMaker Training Compiler (sagemaker_training/__init__.py).
COMPILER = ("tensorflow/compiler/xla", "tensorflow/compiler/tf2xla", "tensorflow/python/compiler/xla", "torch_xla/")

TYPE_CHECKING = False  # As typing's, without importing it.
if TYPE_CHECKING:
    from typing import Any


def main(module: str, function: str) -> None:
    """Run the plug-in; does not return after an exception."""
    try:
        framework = importlib.import_module(module)
        asked = os.environ.get("SM_LOG_LEVEL", "")
        configure(int(asked) if asked.isdigit() else logging.INFO)
        getattr(framework, function)()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is told and ends the process
        sys.exit(_told(error))


def configure(level: int, line_format: str = FORMAT) -> None:
    """Send log lines of *level* and above to stderr."""
    logging.basicConfig(format=line_format, level=level)
    if level >= logging.INFO:
        for name in LIBRARIES:
            logging.getLogger(name).setLevel(level)


def _told(error: Exception) -> int:
    """Leave word of *error*; return the exit code."""
    if _is_client_error(error):
        # `report`: the failure text of a script that the toolkit's own sagemaker_training ran.
        report = getattr(error, "report", "")
        word = {"kind": type(error).__name__, "text": report or str(error), "cause": _output(error) or str(error)}
        word["of_script"] = bool(report)
        code = _script_code(str(getattr(error, "return_code", "")))
        if not _left({**word, "code": code}):
            sys.stderr.write("%s\n" % error)
        return code
    trace = error.__traceback__
    if trace is not None and trace.tb_next is not None:
        trace = trace.tb_next  # Less this file's own line.
    shown = "".join(traceback.format_exception(type(error), error, trace))
    kind = "SMTrainingCompiler Error" if any(path in shown for path in COMPILER) else "Framework Error"
    code = _errno_code(getattr(error, "errno", None))
    sys.excepthook(type(error), error, trace)
    _left({"kind": kind, "text": "%s: \n%s\n%s" % (kind, shown, error), "code": code})
    return code


def _is_client_error(error: Exception) -> bool:
    """True for an error of the user's script or requirements, as sagemaker_training.errors has them."""
    return any(
        (each.__module__, each.__name__) == ("sagemaker_training.errors", "ClientError") for each in type(error).__mro__
    )


def _output(error: Exception) -> str:
    """Return what the process that failed had said, "" if that is not known."""
    output = getattr(error, "output", "")
    return output.decode("utf-8", "replace") if isinstance(output, bytes) else str(output or "")


def _script_code(text: str) -> int:
    """Return the exit status of a process whose Popen.returncode was *text*; 1 where it was none, or 0."""
    if not text.lstrip("-").isdigit() or not int(text):
        return 1
    return 128 - int(text) if int(text) < 0 else int(text) & 0xFF or 1


def _errno_code(errno: "Any") -> int:
    """Return the exit status for *errno* as the kernel shows it; never 0."""
    return errno & 0xFF or 1 if isinstance(errno, int) else 1


def _left(word: "dict[str, Any]") -> bool:
    import json

    folder = os.environ.get("TOOLKIT_STATUS_FOLDER", "")
    # "?" for each byte that is not UTF-8: the reader's JSON refuses what stands for one.
    clean = {
        key: value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
        for key, value in word.items()
    }
    try:
        with open(os.path.join(folder, NAME), "w") as file:
            json.dump(clean, file)
    except OSError:
        return False
    return True


if __name__ == "__main__":
    named = sys.argv[1:3]
    del sys.argv[1:]
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or ".") != here]
    main(*named)
