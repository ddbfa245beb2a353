"""The text of an exception that the rank hook recorded."""

from toolkit.status_pages.pages import Raised
from toolkit.train.verdict.collateral import is_collateral
from toolkit.train.verdict.raised import read_exception

KIND = "tensorflow.python.framework.errors_impl.UnknownError"
# As TensorFlow 2.21 wrote it, with fewer of its frames.
GRAPH = """Graph execution error:

Detected at node net/PyFunc defined at (most recent call last):
  File "<frozen runpy>", line 198, in _run_module_as_main

  File "train.py", line 31, in train

{said}
\t [[{{{{node net/PyFunc}}}}]] [Op:__inference_train_594]"""


def shorten(text: str) -> str:
    message = GRAPH.format(said=text)
    noted = Raised(
        kind=KIND,
        message=message,
        place="train.py:31 in <module>",
        text=f"{KIND}: {message}",
        time_ns=0,
        thread="main",
        code=1,
    )
    exception = read_exception(noted)
    assert exception is not None
    return exception.error


def test_an_error_in_a_tf_function_is_what_the_operation_said() -> None:
    assert shorten("Incompatible shapes: [32,10] vs. [32,11]") == f"{KIND}: Incompatible shapes: [32,10] vs. [32,11]"
    assert shorten("2 root error(s) found.\n  (0) INTERNAL: x\n  (1) INTERNAL: y") == (
        f"{KIND}: 2 root error(s) found.\n  (0) INTERNAL: x\n  (1) INTERNAL: y"
    )


def test_a_lost_peer_in_a_tf_function_is_seen_however_many_frames_stand_before_it() -> None:
    lost = "PeerLost: Connection closed by peer: rank 1 (partition 1, host algo-1) ended or left"

    error = shorten(f"{lost}\nTraceback (most recent call last):\n\n  File boundary.py, line 64\n\nmodule.{lost}\n\n")

    assert error == f"{KIND}: {lost}"
    assert is_collateral(error)
