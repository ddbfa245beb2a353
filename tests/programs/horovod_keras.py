"""Keras 2's `fit` under Horovod, as old scripts call it: tf-keras replaces keras before Horovod imports it."""

import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["TF_USE_LEGACY_KERAS"] = "1"
import tensorflow as tf
import tf_keras

for name in [name for name in sys.modules if name.partition(".")[0] == "keras"]:
    del sys.modules[name]
sys.modules["keras"] = tf_keras
import horovod.tensorflow.keras as hvd

hvd.init()
tf.keras.utils.set_random_seed(hvd.rank())
model = tf.keras.Sequential([tf.keras.layers.Input((8,)), tf.keras.layers.Dense(1, use_bias=False)])
model.compile(optimizer=hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.05)), loss="mse")
images = tf.random.normal((256, 8))
history = model.fit(
    images,
    tf.reduce_sum(images, 1, keepdims=True),
    epochs=8,
    verbose=0,
    callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()],
)
every = hvd.allgather(tf.transpose(model.get_weights()[0])).numpy()
losses = history.history["loss"]
print(
    f"rank {hvd.rank()} of {hvd.size()} learns: {losses[-1] < 0.1 * losses[0]}, "
    f"replicas identical: {(every == every[0]).all()}",
    flush=True,
)
