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
        level = os.environ.get("SM_LOG_LEVEL", "")
        configure(int(level) if level.isdigit() else logging.INFO)
        getattr(framework, function)()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is recorded and ends the process
        sys.exit(_report(error))


def configure(level: int, line_format: str = FORMAT) -> None:
    """Send log lines of *level* and above to stderr."""
    logging.basicConfig(format=line_format, level=level)
    if level >= logging.INFO:
        for name in LIBRARIES:
            logging.getLogger(name).setLevel(level)


def _report(error: Exception) -> int:
    """Record *error* for `train`; return the exit code."""
    if _is_client_error(error):
        # `report`: the failure text of a script that the toolkit's own sagemaker_training ran.
        report = getattr(error, "report", "")
        record = {"kind": type(error).__name__, "text": report or str(error), "cause": _output(error) or str(error)}
        record["of_script"] = bool(report)
        code = _script_code(str(getattr(error, "return_code", "")))
        if not _write_record({**record, "code": code}):
            sys.stderr.write("%s\n" % error)
        return code
    trace = error.__traceback__
    if trace is not None and trace.tb_next is not None:
        trace = trace.tb_next  # Less this file's own line.
    traceback_text = "".join(traceback.format_exception(type(error), error, trace))
    kind = "SMTrainingCompiler Error" if any(path in traceback_text for path in COMPILER) else "Framework Error"
    code = _errno_code(getattr(error, "errno", None))
    sys.excepthook(type(error), error, trace)
    _write_record({"kind": kind, "text": "%s: \n%s\n%s" % (kind, traceback_text, error), "code": code})
    return code


def _is_client_error(error: Exception) -> bool:
    """True for an error of the user's script or requirements, as sagemaker_training.errors has them."""
    return any(
        (base.__module__, base.__name__) == ("sagemaker_training.errors", "ClientError") for base in type(error).__mro__
    )


def _output(error: Exception) -> str:
    """Return the output of the process that failed, "" if that is not known."""
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


def _write_record(record: "dict[str, Any]") -> bool:
    import json

    folder = os.environ.get("TOOLKIT_STATUS_FOLDER", "")
    # "?" for each byte that is not UTF-8: the reader's JSON refuses the surrogate of one.
    clean = {
        key: value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
        for key, value in record.items()
    }
    try:
        with open(os.path.join(folder, NAME), "w") as file:
            json.dump(clean, file)
    except OSError:
        return False
    return True


if __name__ == "__main__":
    arguments = sys.argv[1:3]
    del sys.argv[1:]
    own_folder = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or ".") != own_folder]
    main(*arguments)
