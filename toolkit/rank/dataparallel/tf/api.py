"""The functions of `smdistributed.dataparallel.tensorflow`, of one process; signatures as AWS documented them.

In a tf.function the work is a numpy_function: one for all gradients of a step. Each depends on the one before it, so
that all ranks make the same calls in the same order, whatever order TensorFlow's executor prefers. jit_compile does
not allow numpy_function.
"""

import atexit
import os
import sys
import threading
from collections.abc import Sequence
from numbers import Integral
from typing import Any

from toolkit.rank.dataparallel.exceptions import SMDDPError, SMDDPNotInitializedError
from toolkit.rank.dataparallel.tf.agreement import CollectiveAgreement
from toolkit.rank.dataparallel.tf.fuse import ALIGN_BYTES, BUCKET_MIB, MIB
from toolkit.rank.dataparallel.tf.transport import SingleRankTransport, Transport, connect

AGAIN = "init() called more than once. smdistributed.dataparallel is already initialized."


class ReduceOp:
    """The operations of an all-reduce."""

    AVERAGE = "average"
    SUM = "sum"
    MIN = "min"
    MAX = "max"


class NoCompression:
    """Tensors are sent unchanged."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, _context: Any) -> Any:
        return tensor


class HalfCompression:
    """Converts float32 and float64 to float16. They are sent as float32, since MPI and gloo do not add float16."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        import tensorflow as tf

        if tensor.dtype in (tf.float32, tf.float64):
            return tf.cast(tensor, tf.float16), tensor.dtype
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, context: Any) -> Any:
        import tensorflow as tf

        return tensor if context is None else tf.cast(tensor, context)


class Compression:
    """The compressions of gradients."""

    none = NoCompression
    fp16 = HalfCompression


class Library:
    """The library of one process: at first not initialized, then connected to the other ranks, at last shut down."""

    def __init__(self) -> None:
        self._transport: Transport | None = None
        self._agreement = CollectiveAgreement(SingleRankTransport())
        self._lock = threading.Lock()
        self._pid = 0  # of the process that called init()

    def init(self) -> None:
        """Join the other ranks.

        Raises:
            RuntimeError: it was called before.
            SMDDPError: the package over which the ranks communicate is missing.
        """
        if self._transport is not None:
            raise RuntimeError(AGAIN)
        self._transport = connect()
        self._agreement = CollectiveAgreement(self._transport)
        self._pid = os.getpid()
        atexit.register(self._at_exit)

    def shutdown(self) -> None:
        """Leave the group. The other ranks must leave, too; init() may be called again.

        Raises:
            SMDDPError: on every rank, if another one calls a collective.
        """
        transport, self._transport = self._transport, None
        if transport is None:
            return
        atexit.unregister(self._at_exit)
        try:
            with self._lock:
                self._agreement.end()
        except SMDDPError:
            raise
        except Exception:  # noqa: BLE001 - a rank that is gone or late fails itself, and not those that leave
            pass
        finally:
            transport.leave()

    def _at_exit(self) -> None:
        """Leave at the end of the program: with the other ranks, unless it fails and they notice. Not in a forked
        child, nor during a call."""
        if self._pid != os.getpid() or self._transport is None:
            return
        has_failed = hasattr(sys, "last_value")
        if self._transport.ends_alone(has_failed) or not self._lock.acquire(blocking=False):
            self._transport.leave()
            return
        self._lock.release()
        try:
            self.shutdown()
        except SMDDPError as error:
            if not has_failed:
                sys.stderr.write(f"[toolkit] smddp: rank {self._agreement.rank}: {error}\n")

    @property
    def transport(self) -> Transport:
        """The transport to the other ranks.

        Raises:
            SMDDPNotInitializedError: init() was not called.
        """
        if self._transport is None:
            raise SMDDPNotInitializedError(
                "smdistributed.dataparallel is not initialized: expected init() before this call"
            )
        return self._transport

    @property
    def _collectives(self) -> CollectiveAgreement:
        """The collectives. Looked up at each call: a tf.function may be traced before a second init()."""
        _ = self.transport
        return self._agreement

    def size(self) -> int:
        return self.transport.position.size

    def rank(self) -> int:
        return self.transport.position.rank

    def local_size(self) -> int:
        return self.transport.position.local_size

    def local_rank(self) -> int:
        return self.transport.position.local_rank

    def allreduce(
        self,
        tensor: Any,
        param_index: int,
        num_params: int,
        compression: Any = NoCompression,
        op: str = ReduceOp.AVERAGE,
    ) -> Any:
        """Return the average (sum, ...) of every rank's *tensor*, a gradient; *param_index* is ignored."""
        return self.oob_allreduce(tensor, compression, op)

    def oob_allreduce(self, tensor: Any, compression: Any = NoCompression, op: str = ReduceOp.AVERAGE) -> Any:
        """Return the average (sum, ...) of every rank's *tensor*."""
        (reduced,) = self.reduce_tensors([tensor], compression, op)
        return reduced

    def reduce_tensors(
        self,
        tensors: list[Any],
        compression: Any = NoCompression,
        op: str = ReduceOp.AVERAGE,
        bucket_mib: float = BUCKET_MIB,
        names: Sequence[str] = (),
    ) -> list[Any]:
        """Return *tensors* reduced over all ranks, in one call; None stays None, IndexedSlices become dense.

        *names* of the tensors, for errors.

        Raises:
            ValueError: *op* is none of `ReduceOp`'s, or has no meaning for the type of a tensor.
            SMDDPError: the ranks differ in the number, types or shapes of *tensors*, or in the tensors that are None.
        """
        import numpy as np
        import tensorflow as tf

        _ = self.transport  # In a tf.function this raises now and not when it runs.
        most_bytes = int(bucket_mib * MIB)
        present = [number for number, tensor in enumerate(tensors) if tensor is not None]
        dense = [tf.convert_to_tensor(tensors[number]) for number in present]
        packed = [compression.compress(tensor) for tensor in dense]
        for tensor, _ in packed:
            check_operation(op, tensor.dtype)

        def move(*arrays: Any) -> list[Any]:
            on_ranks: list[Any] = [None] * len(tensors)
            for number, array in zip(present, arrays, strict=True):
                on_ranks[number] = np.asarray(array)
            with self._lock:
                reduced = self._collectives.allreduce(op, on_ranks, most_bytes, names)
            return [reduced[number] for number in present]

        moved = _call_in_order(move, [tensor for tensor, _ in packed])
        results: list[Any] = [None] * len(tensors)
        for number, (_, context), tensor in zip(present, packed, moved, strict=True):
            results[number] = compression.decompress(tensor, context)
        return results

    def broadcast(self, tensor: Any, root_rank: int) -> Any:
        """Return rank *root_rank*'s *tensor*.

        Raises:
            ValueError: there is no such rank, or no broadcast for the tensor's type.
        """
        (received,) = self._broadcast([tensor], root_rank)
        return received

    def broadcast_variables(self, variables: Any, root_rank: int) -> Any:
        """Set *variables* to their values on rank *root_rank*; return the group of assignments (for TensorFlow 1)."""
        import tensorflow as tf

        variable_list = list(variables)
        if not variable_list:
            return tf.no_op()
        return tf.group(
            *(
                _assign(v, value)
                for v, value in zip(variable_list, self._broadcast(variable_list, root_rank), strict=True)
            )
        )

    def broadcast_global_variables(self, root_rank: int) -> Any:
        """Do the same with TensorFlow 1's global variables."""
        import tensorflow as tf

        return self.broadcast_variables(tf.compat.v1.global_variables(), root_rank)

    def _broadcast(self, tensors: list[Any], root_rank: int) -> list[Any]:
        import numpy as np
        import tensorflow as tf

        tensors_of_rank = [tf.convert_to_tensor(tensor) for tensor in tensors]
        root = check_root_rank(root_rank, self.transport.position.size)
        check_broadcast([tensor.dtype for tensor in tensors_of_rank])

        def move(*arrays: Any) -> list[Any]:
            with self._lock:
                return self._collectives.broadcast([np.asarray(array) for array in arrays], root)

        return _call_in_order(move, tensors_of_rank)


def check_operation(op: Any, kind: Any) -> None:
    """Raise ValueError unless tensors of TensorFlow's type *kind* can be reduced by *op*."""
    operations = (ReduceOp.AVERAGE, ReduceOp.SUM, ReduceOp.MIN, ReduceOp.MAX)
    if op not in operations:
        raise ValueError(
            f"smdistributed.dataparallel: op: expected one of {', '.join(map(repr, operations))}, got {op!r}"
        )
    if kind.is_floating or (kind.is_integer and op != ReduceOp.AVERAGE) or (kind.is_complex and op in operations[:2]):
        return
    if kind.is_integer:
        hint = "An average of integers would be rounded: use tf.cast(tensor, tf.float64), or ReduceOp.SUM."
    elif kind.is_bool:
        hint = "Use tf.cast(tensor, tf.int32): the least of all ranks is 'all', the greatest is 'any'."
    else:
        hint = "Reduce its numbers as another type."
    raise ValueError(f"smdistributed.dataparallel: a tensor of type {kind.name} has no {op} over ranks. {hint}")


def check_root_rank(root_rank: Any, size: int) -> int:
    """Return *root_rank*, of *size* ranks, as an int; raise ValueError if there is none."""
    if isinstance(root_rank, Integral) and 0 <= int(root_rank) < size:
        return int(root_rank)
    raise ValueError(f"smdistributed.dataparallel: root_rank: expected a rank from 0 to {size - 1}, got {root_rank!r}")


def check_broadcast(kinds: Sequence[Any]) -> None:
    """Raise ValueError unless tensors of TensorFlow's types *kinds* can be sent."""
    for kind in kinds:
        if not (kind.is_floating or kind.is_integer or kind.is_complex or kind.is_bool):
            raise ValueError(
                f"smdistributed.dataparallel: a tensor of type {kind.name} has no broadcast."
                " Send numbers; text as tf.io.decode_raw(text, tf.uint8), of the same length on each rank."
            )


def _assign(variable: Any, value: Any) -> Any:
    """Return the operation that sets *variable*, a tf.Variable or one of Keras's."""
    done = variable.assign(value)
    return value if done is None else done


def _call_in_order(move: Any, tensors: list[Any]) -> list[Any]:
    """Return the result of *move* on *tensors*: now, or in the graph under construction, after the previous call."""
    import tensorflow as tf

    if tf.executing_eagerly():
        import numpy as np

        results = move(*(np.asarray(tensor) for tensor in tensors))  # Views: Tensor.numpy() copies.
        return [_tensor(value, tensor.dtype) for value, tensor in zip(results, tensors, strict=True)]
    graph = tf.compat.v1.get_default_graph()
    previous = getattr(graph, "_toolkit_smddp_last", None)
    with tf.control_dependencies([previous] if previous is not None else []):
        results = tf.numpy_function(move, tensors, [tensor.dtype for tensor in tensors])
    if not tensors:  # Nothing moves, but the other ranks must agree on that.
        graph._toolkit_smddp_last = results
        return []
    graph._toolkit_smddp_last = results[0].op
    for value, tensor in zip(results, tensors, strict=True):
        value.set_shape(tensor.shape)
    return list(results)


def _tensor(value: Any, kind: Any) -> Any:
    """Return the array *value* as a tensor of type *kind*; without a copy if TensorFlow can use its memory."""
    import tensorflow as tf

    if value.dtype.kind in "fiu" and value.size and value.ctypes.data % ALIGN_BYTES == 0 and value.flags.writeable:
        return tf.experimental.dlpack.from_dlpack(value.__dlpack__())
    return tf.constant(value, dtype=kind)
