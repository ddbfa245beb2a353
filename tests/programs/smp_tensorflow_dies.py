"""Two partitions train until the second rank's data is missing. With the hyperparameter killed, as many partitions as
ranks train until the second one is killed inside a step."""

import os
import signal
import sys

import numpy as np
import tensorflow as tf

import smdistributed.modelparallel.tensorflow as smp

smp.init()
Dense = tf.keras.layers.Dense


IS_KILLED = "--killed" in sys.argv


class Deadly(Dense):
    """A layer whose sixth call, of the third step, is partition 1's last."""

    calls = 0

    def call(self, x):
        with tf.control_dependencies([tf.numpy_function(self.count, [], tf.int64)]):
            return tf.identity(super().call(x))

    def count(self):
        self.calls += 1
        if IS_KILLED and smp.pp_rank() == 1 and self.calls == 6:
            print("killed inside a step", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        return np.int64(self.calls)


class Net(smp.DistributedModel):
    def __init__(self):
        super().__init__()
        self.one, self.two, self.three = Dense(8), Deadly(8), Dense(4)

    def call(self, x):
        return self.three(self.two(self.one(x)))


model = Net()
optimizer = tf.keras.optimizers.SGD(0.1)


@smp.step
def step(x):
    loss = tf.reduce_mean(model(x) ** 2)
    return optimizer.get_gradients(loss, model.trainable_variables), loss


@tf.function
def train(x):
    gradients, loss = step(x)
    optimizer.apply_gradients(zip([variable.accumulate() for variable in gradients], model.trainable_variables))
    return loss.reduce_mean()


for number in range(1000):
    if not IS_KILLED and number == 3 and smp.pp_rank() == 1:
        raise FileNotFoundError("no shard 7")
    train(tf.constant(np.ones((4, 6), "float32")))
    print(f"rank {smp.rank()} has done step {number}", flush=True)
