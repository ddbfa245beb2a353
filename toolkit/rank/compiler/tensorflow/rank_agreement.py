"""Lets ranks agree on measurements, over the collectives that their training steps use anyway.

A compiled step and a native one exchange gradients under different keys (MultiWorkerMirroredStrategy) or names
(Horovod): ranks that ran different ones would wait for each other for ever. So all take turns by the number of the
step, and the decision, after a few given steps, is made with one small collective. Steps with collectives are equally
many on all ranks, or the job hangs without a trial, too: a rank that ended is noticed as in any other step.

A step that cannot be compiled on one rank would leave the others in its collective. So ranks vote in the first compiled
step, after each part that is compiled: the model's forward pass, before anything uses its outputs (a loss that ranks
average), and the gradients, before they are exchanged.
"""

import json
import os
import sys

TYPE_CHECKING = False  # As typing's, without importing it.
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Agree = Callable[[list[float]], list[float]]

GROUP_KEY = 71_000_001  # TensorFlow counts its groups from 1.
TIMEOUT_S = 600.0
ELSEWHERE = "another rank cannot compile it"


def alone(values: "list[float]") -> "list[float]":
    """Return *values*: there is one rank."""
    return values


class Ballot:
    """The votes of all ranks on whether they could compile a step: on its forward pass, then on its gradients.

    `passed`: all votes were held, and no rank had failed. `refused`: a rank had.
    """

    ROUNDS = 2

    def __init__(self, agree: "Agree") -> None:
        self._agree = agree
        self._held = 0
        self.refused = False

    @property
    def passed(self) -> bool:
        return self._held >= self.ROUNDS and not self.refused

    def cast(self, *, failed: bool) -> None:
        """Vote in the next round, and wait for the votes of all ranks."""
        self._held += 1
        self.refused = bool(self._agree([float(failed)])[0])

    def guard(self, tensorflow: "Any", tensors: "Any", number: int) -> "Any":
        """Return *tensors* of the graph under construction, which are there once all ranks have theirs: round *number*.

        What depends on them, as the exchange of gradients or of a loss, does not begin before. Later steps do not vote.
        """

        def vote() -> None:
            if self._held <= number:
                self._held = number
                self.cast(failed=False)
            if self.refused:
                raise RuntimeError(ELSEWHERE)

        flat = tensorflow.nest.flatten(tensors, expand_composites=True)
        present = [tensor for tensor in flat if tensor is not None]
        graph = tensorflow.compat.v1.get_default_graph()
        # smddp's calls keep one order by this attribute (rank/dataparallel/tf/api.py): the vote is one of them.
        last_call = getattr(graph, "_toolkit_smddp_last", None)
        with tensorflow.control_dependencies(present if last_call is None else [*present, last_call]):
            voted = tensorflow.numpy_function(vote, [], [])
        graph._toolkit_smddp_last = voted
        with tensorflow.control_dependencies([voted]):
            guarded = [tensor if tensor is None else tensorflow.identity(tensor) for tensor in flat]
        return tensorflow.nest.pack_sequence_as(tensors, guarded, expand_composites=True)


def find_agreement(tensorflow: "Any", operations: "frozenset[str]") -> "tuple[Agree, str] | None":
    """Return the function that gives all ranks the largest of their values, and its name; None if there is none.

    *operations*: those of the training step (graphs.operations).
    """
    if any(kind.startswith("Horovod") for kind in operations):
        return _horovod(tensorflow)
    if any(kind.startswith("Collective") for kind in operations):
        return _workers(tensorflow)
    if any(kind.startswith("Nccl") for kind in operations):
        return alone, "one rank with several GPUs"
    library = sys.modules.get("smdistributed.dataparallel.tensorflow")
    if library is not None and not operations.isdisjoint(("PyFunc", "EagerPyFunc")) and library.size() > 1:
        return _smddp(tensorflow, library)
    return alone, "one rank"


def _horovod(tensorflow: "Any") -> "tuple[Agree, str] | None":
    horovod = sys.modules.get("horovod.tensorflow")
    if horovod is None:
        return None
    calls = 0

    def agree(values: "list[float]") -> "list[float]":
        nonlocal calls
        calls += 1
        row = tensorflow.constant(values, tensorflow.float64)
        gathered = horovod.allgather(tensorflow.expand_dims(row, 0), name="toolkit.rank.compiler.%d" % calls)
        return [float(largest) for largest in tensorflow.reduce_max(gathered, axis=0).numpy()]

    return agree, "Horovod"


def _smddp(tensorflow: "Any", library: "Any") -> "tuple[Agree, str]":
    def agree(values: "list[float]") -> "list[float]":
        row = tensorflow.constant(values, tensorflow.float64)
        return [float(largest) for largest in library.oob_allreduce(row, op="max").numpy()]

    return agree, "smddp"


def _workers(tensorflow: "Any") -> "tuple[Agree, str] | None":
    """Agree over TensorFlow's collectives between the workers of TF_CONFIG, in a group for this alone."""
    try:
        described = json.loads(os.environ.get("TF_CONFIG", "{}"))
        cluster, task = described["cluster"], described["task"]
        size = len(cluster.get("worker", ())) + len(cluster.get("chief", ()))
        index = int(task["index"]) + (len(cluster.get("chief", ())) if task["type"] == "worker" else 0)
    except (ValueError, KeyError, TypeError, AttributeError):
        size = 0
    if size < 2:
        # A cluster that TF_CONFIG does not describe (SlurmClusterResolver): the ranks cannot agree.
        devices = [device.name for device in tensorflow.config.list_logical_devices()]
        if any("/job:" in name and "/job:localhost/" not in name for name in devices):
            return None
        return alone, "one rank with several devices"
    calls = 0

    def agree(values: "list[float]") -> "list[float]":
        nonlocal calls
        calls += 1
        device = "/job:%s/replica:0/task:%d/device:CPU:0" % (task["type"], int(task["index"]))
        with tensorflow.device(device):
            # Each rank fills its own row, and rows are added: TensorFlow's ring knows no other way for all kinds.
            rows = [values if rank == index else [0.0] * len(values) for rank in range(size)]
            merged = tensorflow.raw_ops.CollectiveReduceV2(
                input=tensorflow.constant(rows, tensorflow.float64),
                group_size=size,
                group_key=GROUP_KEY,
                instance_key=GROUP_KEY + calls,
                ordering_token=[],
                merge_op="Add",
                final_op="Id",
                communication_hint="ring",
                timeout_seconds=TIMEOUT_S,
            )
        return [float(largest) for largest in tensorflow.reduce_max(merged, axis=0).numpy()]

    return agree, "MultiWorkerMirroredStrategy"
