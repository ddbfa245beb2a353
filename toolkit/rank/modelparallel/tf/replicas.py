"""Gradients averaged over the replicas of the model: by Horovod where it is installed, else by mpi4py."""

from collections.abc import Callable
from typing import Any

from toolkit.rank.modelparallel.world import World


class Replicas:
    """The way to this rank's fellows in the other replicas: none, Horovod's or MPI's."""

    def __init__(self) -> None:
        self._average: Callable[[Any], Any] | None = None

    def connect(self, here: World) -> None:
        """Join this rank's replicas. All ranks call it."""
        import importlib.util

        self._average = None
        fellows = here.group("rdp")
        if here.cfg.horovod and importlib.util.find_spec("horovod") is not None:
            found = _by_horovod(fellows)  # Also for a single replica: the script may use Horovod itself.
            self._average = found if len(fellows) > 1 else None
        elif len(fellows) > 1:
            self._average = _by_mpi(fellows)

    @property
    def average(self) -> Callable[[Any], Any] | None:
        """What averages a gradient, a tensor of a graph or an eager one; None: there is one replica."""
        return self._average


REPLICAS = Replicas()


def _by_horovod(fellows: tuple[int, ...]) -> Callable[[Any], Any]:
    """Start Horovod among *fellows* alone, so that the script's own hvd.size() is the number of replicas."""
    import horovod.tensorflow as hvd

    hvd.init(comm=list(fellows))

    def average(gradient: Any) -> Any:
        return hvd.allreduce(gradient, op=hvd.Average)

    return average


def _by_mpi(fellows: tuple[int, ...]) -> Callable[[Any], Any]:
    import threading

    import numpy as np
    import tensorflow as tf
    from mpi4py import MPI

    group = MPI.COMM_WORLD.group.Incl(list(fellows))
    comm = MPI.COMM_WORLD.Create_group(group)
    one_at_a_time = threading.Lock()

    def averaged(array: Any) -> Any:
        wide = np.ascontiguousarray(array, np.float64 if array.dtype == np.float64 else np.float32).copy()
        with one_at_a_time:
            comm.Allreduce(MPI.IN_PLACE, wide)
        return (wide / len(fellows)).astype(array.dtype)

    def average(gradient: Any) -> Any:
        gradient = tf.convert_to_tensor(gradient)
        if tf.executing_eagerly():
            return tf.constant(averaged(gradient.numpy()))
        # All ranks reduce in the same order: each waits for the one before.
        graph = tf.compat.v1.get_default_graph()
        before = getattr(graph, "_toolkit_smp_reduced", None)
        with tf.control_dependencies([] if before is None else [before]):
            found = tf.numpy_function(averaged, [gradient], gradient.dtype)
        graph._toolkit_smp_reduced = found.op
        found.set_shape(gradient.shape)
        return found

    return average
