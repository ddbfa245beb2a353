"""A rank of TensorFlow that uses the old library and prints the results as one line of JSON."""

import json
import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import numpy as np
import smdistributed.dataparallel.tensorflow as sdp
import smdistributed.dataparallel.tensorflow.keras as sdp_keras
import tensorflow as tf
from smdistributed.dataparallel.tensorflow.keras import callbacks

tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(2)
results = {}
try:
    sdp.rank()
except RuntimeError as error:
    results["too early"] = str(error)
sdp.init()
try:
    sdp.init()
except RuntimeError as error:
    results["again"] = str(error)
rank, size = sdp.rank(), sdp.size()
results["numbers"] = [rank, size, sdp.local_rank(), sdp.local_size(), sdp_keras.rank()]

rank_value = tf.constant([1.0, 2.0]) * (rank + 1)
results["reduced"] = {
    op: sdp.oob_allreduce(rank_value, op=op).numpy().tolist() for op in ("average", "sum", "min", "max")
}
results["gradient"] = sdp.allreduce(rank_value, 0, 1).numpy().tolist()
results["types"] = [
    sdp.oob_allreduce(tf.cast(rank_value, kind), op=sdp.ReduceOp.SUM).numpy().astype("float64").tolist()
    for kind in (tf.float16, tf.bfloat16, tf.float64, tf.int32, tf.int64)
]
results["half"] = [
    str(sdp.oob_allreduce(rank_value, compression=sdp.Compression.fp16).dtype),
    sdp.oob_allreduce(rank_value, sdp.Compression.fp16).numpy().tolist(),
]
results["told"] = sdp.broadcast(rank_value, 1).numpy().tolist()
# Large enough for the shared memory, which may be measured to be slower than MPI here: results are the same.
large = {kind: tf.cast(tf.fill([500_000], rank + 1.0), kind) for kind in ("float32", "float64", "float16", "int32")}
traced = tf.function(sdp.oob_allreduce)
results["large"] = {
    kind: [
        sorted(set(how(tensor, op=op).numpy().astype("float64").tolist()))
        for how in (sdp.oob_allreduce, traced)
        for op in (("average",) if tensor.dtype.is_floating else ()) + ("sum", "max")
    ]
    for kind, tensor in large.items()
}
results["unchanged"] = all(bool(tf.reduce_all(tf.cast(value, "float32") == rank + 1.0)) for value in large.values())
results["empty"] = sdp.oob_allreduce(tf.zeros([0])).shape.as_list()
results["overlap"] = sdp.overlap(rank_value) is rank_value


def net():
    tf.keras.utils.set_random_seed(7)
    return tf.keras.Sequential(
        [tf.keras.Input((8,)), tf.keras.layers.Dense(16, activation="relu"), tf.keras.layers.Dense(1)]
    )


random = np.random.default_rng(0)
images, labels = random.normal(size=(32, 8)).astype("float32"), random.normal(size=(32, 1)).astype("float32")
part = slice(rank * 16, rank * 16 + 16)


def trained(images, labels, wrap):
    """Run three steps in a tf.function; as in old scripts, the first step broadcasts inside it."""
    model = net()
    optimizer = tf.keras.optimizers.Adam(0.05)
    optimizer.build(model.trainable_variables)
    if wrap and rank == 1:
        model.set_weights([weight + 1 for weight in model.get_weights()])

    @tf.function
    def step(first):
        if wrap and first:
            sdp.broadcast_variables(model.variables, root_rank=0)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(images) - labels) ** 2)
        if wrap:
            tape = sdp.DistributedGradientTape(tape)
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        return sdp.oob_allreduce(loss) if wrap else loss

    losses = [float(step(number == 0)) for number in range(3)]
    return losses, np.concatenate([weight.ravel() for weight in model.get_weights()])


alone, together = trained(images, labels, False), trained(images[part], labels[part], True)
results["tape"] = [float(np.abs(np.subtract(*both)).max()) for both in zip(alone, together)]


def fitted(images, labels, wrap):
    model = net()
    optimizer = tf.keras.optimizers.SGD(0.05, momentum=0.9)
    watch = []
    if wrap:
        optimizer = sdp_keras.DistributedOptimizer(optimizer)
        watch = [callbacks.BroadcastGlobalVariablesCallback(0), callbacks.MetricAverageCallback()]
        results["optimizer"] = type(optimizer).__name__
    model.compile(optimizer, "mse")
    past = model.fit(images, labels, batch_size=len(images), epochs=3, shuffle=False, verbose=0, callbacks=watch)
    return past.history["loss"], np.concatenate([weight.ravel() for weight in model.get_weights()])


alone, together = fitted(images, labels, False), fitted(images[part], labels[part], True)
results["fit"] = [float(np.abs(np.subtract(*both)).max()) for both in zip(alone, together)]
results["weights"] = together[1].tolist()

table = tf.Variable(tf.ones([4, 2]))
with tf.GradientTape() as tape:
    loss = tf.reduce_sum(tf.gather(table, [rank, 3]))
(sparse,) = sdp.DistributedGradientTape(tape).gradient(loss, [table])
results["sparse"] = sparse.numpy().tolist()
with tf.GradientTape() as tape:
    loss = tf.reduce_sum(table)
unused = tf.Variable(1.0)
results["none"] = sdp.DistributedGradientTape(tape).gradient(loss, [table, unused])[1] is None

imaginary = tf.complex(rank_value, -rank_value)
results["complex"] = [
    [[z.real, z.imag] for z in sdp.oob_allreduce(imaginary, op=op).numpy().tolist()] for op in ("average", "sum")
]


def refused(function, *arguments, **options):
    try:
        function(*arguments, **options)
    except Exception as error:  # noqa: BLE001 # An error of a tf.function has TensorFlow's type.
        return str(error)
    return ""


results["no average"] = [
    refused(sdp.oob_allreduce, tensor, op=op)
    for tensor, op in (
        (tf.constant([1, 2]), "average"),
        (tf.constant([True]), "sum"),
        (tf.constant([True]), "max"),
        (imaginary, "min"),
        (tf.constant(["text"]), "sum"),
        (rank_value, "mean"),
    )
]

# Where ranks differ, every rank gets the same error, in place of a sum of what does not belong together.
u, w = tf.Variable([10.0], name="u"), tf.Variable([100.0], name="w")


def slopes():
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum((w if rank else u) * 3)
    return sdp.DistributedGradientTape(tape).gradient(loss, [u, w])


@tf.function
def traced_slopes():
    return [slope for slope in slopes() if slope is not None]


@tf.function
def all_missing():
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(w * 3)
    sdp.DistributedGradientTape(tape).gradient(loss, [w] if rank else [u])
    return loss


optimizer = sdp.DistributedOptimizer(tf.keras.optimizers.SGD(1.0))
results["differ"] = {
    "tape": refused(slopes),
    "in a function": refused(traced_slopes),
    "all missing": refused(all_missing),
    "optimizer": refused(optimizer.apply_gradients, [(tf.constant([1.0]), w if rank else u)] * (rank + 1)),
    "shapes": refused(sdp.oob_allreduce, tf.zeros([rank + 1])),
    "types": refused(sdp.oob_allreduce, tf.zeros([2], tf.float64 if rank else tf.float32)),
    "operations": refused(sdp.oob_allreduce, rank_value, op="max" if rank else "sum"),
    "calls": refused(sdp.oob_allreduce, rank_value) if rank else refused(sdp.broadcast, rank_value, 0),
    "broadcast": refused(sdp.broadcast_variables, [u, w][: rank + 1], 0),
    "roots": refused(sdp.broadcast, rank_value, rank),
}
results["left alone"] = [u.numpy().tolist(), w.numpy().tolist()]
results["goes on"] = sdp.oob_allreduce(rank_value).numpy().tolist()
results["no broadcast"] = [
    refused(sdp.broadcast, tensor, root)
    for tensor, root in ((rank_value, 2), (rank_value, "0"), (tf.constant(["text"]), 0))
]

# An optimizer that has taken a step before it is wrapped: loaded with a model, say.
weight = tf.keras.Variable(1.0)
adam = tf.keras.optimizers.Adam(0.5)
adam.apply([tf.constant(1.0)], [weight])
adam = sdp.DistributedOptimizer(adam)
results["state"] = [int(adam.iterations), bool(adam.variables[2].numpy() != 0)]

# Under the policy mixed_float16, compile() scales the loss outside the optimizer. An infinite gradient on rank 1 alone.
weight = tf.keras.Variable(10.0)
scaled = tf.keras.optimizers.LossScaleOptimizer(sdp.DistributedOptimizer(tf.keras.optimizers.SGD(1.0)))
scaled.build([weight])
results["scaled"] = []
for infinite in (True, False):
    slope = scaled.scale_loss(tf.constant(1.0 + rank))
    scaled.apply([slope * float("inf") if rank and infinite else slope], [weight])
    results["scaled"].append([float(weight.numpy()), float(scaled.dynamic_scale.numpy())])

with tf.Graph().as_default():
    old = tf.compat.v1.get_variable("old", initializer=float(rank), use_resource=True)
    slope = sdp.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(1.0)).compute_gradients(
        old * (rank + 1), [old]
    )
    hook = sdp.BroadcastGlobalVariablesHook(1)
    with tf.compat.v1.train.MonitoredSession(hooks=[hook]) as session:
        results["session"] = [float(session.run(old)), float(session.run(slope)[0][0])]

results["one step more"] = refused(traced, rank_value) if rank else refused(sdp.shutdown)
sdp.shutdown()
results["between"] = refused(traced, large["float64"])
sdp.init()
results["again"] = [results["again"], sorted(set(traced(large["float64"]).numpy().tolist()))]
print(json.dumps(results), flush=True)
