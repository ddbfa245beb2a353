"""Two partitions train until the second rank's data is missing."""

import os

import numpy as np
import tensorflow as tf

import smdistributed.modelparallel.tensorflow as smp

smp.init()
Dense = tf.keras.layers.Dense


class Net(smp.DistributedModel):
    def __init__(self):
        super().__init__()
        self.one, self.two = Dense(8), Dense(4)

    def call(self, x):
        return self.two(self.one(x))


model = Net()
optimizer = tf.keras.optimizers.SGD(0.1)


@smp.step
def step(x):
    loss = tf.reduce_mean(model(x) ** 2)
    return optimizer.get_gradients(loss, model.trainable_variables), loss


@tf.function
def train(x):
    gradients, loss = step(x)
    optimizer.apply_gradients(zip([each.accumulate() for each in gradients], model.trainable_variables))
    return loss.reduce_mean()


for number in range(1000):
    if number == 3 and smp.pp_rank() == 1:
        raise FileNotFoundError("no shard 7")
    train(tf.constant(np.ones((4, 6), "float32")))
    print(f"rank {smp.rank()} has done step {number}", flush=True)
