"""Averages gradients over the replicas of the model: by Horovod if it is installed, else by mpi4py."""

from collections.abc import Callable
from typing import Any

from toolkit.rank.modelparallel.world import World


class GradientAverager:
    """Averages over the ranks that hold the same part in the other replicas: by Horovod, by MPI, or not at all."""

    def __init__(self) -> None:
        self._average: Callable[[Any], Any] | None = None

    def connect(self, current_world: World) -> None:
        """Connect to this rank's replicas. All ranks call it."""
        import importlib.util

        self._average = None
        ranks = current_world.group("rdp")
        if current_world.cfg.horovod and importlib.util.find_spec("horovod") is not None:
            average = _average_by_horovod(ranks)  # Also for a single replica: the script may use Horovod itself.
            self._average = average if len(ranks) > 1 else None
        elif len(ranks) > 1:
            self._average = _average_by_mpi(ranks)

    @property
    def average(self) -> Callable[[Any], Any] | None:
        """The function that averages a gradient, a tensor of a graph or an eager one; None if there is one replica."""
        return self._average


GRADIENT_AVERAGER = GradientAverager()


def _average_by_horovod(ranks: tuple[int, ...]) -> Callable[[Any], Any]:
    """Start Horovod among *ranks* only, so that the script's own hvd.size() is the number of replicas."""
    import horovod.tensorflow as hvd

    hvd.init(comm=list(ranks))

    def average(gradient: Any) -> Any:
        return hvd.allreduce(gradient, op=hvd.Average)

    return average


def _average_by_mpi(ranks: tuple[int, ...]) -> Callable[[Any], Any]:
    import threading

    import numpy as np
    import tensorflow as tf
    from mpi4py import MPI

    group = MPI.COMM_WORLD.group.Incl(list(ranks))
    comm = MPI.COMM_WORLD.Create_group(group)
    lock = threading.Lock()

    def average_array(array: Any) -> Any:
        converted = np.ascontiguousarray(array, np.float64 if array.dtype == np.float64 else np.float32).copy()
        with lock:
            comm.Allreduce(MPI.IN_PLACE, converted)
        return (converted / len(ranks)).astype(array.dtype)

    def average(gradient: Any) -> Any:
        gradient = tf.convert_to_tensor(gradient)
        if tf.executing_eagerly():
            return tf.constant(average_array(gradient.numpy()))
        # All ranks reduce in the same order: each reduction waits for the previous one.
        graph = tf.compat.v1.get_default_graph()
        previous = getattr(graph, "_toolkit_smp_reduced", None)
        with tf.control_dependencies([] if previous is None else [previous]):
            averaged_gradient = tf.numpy_function(average_array, [gradient], gradient.dtype)
        graph._toolkit_smp_reduced = averaged_gradient.op
        averaged_gradient.set_shape(gradient.shape)
        return averaged_gradient

    return average
