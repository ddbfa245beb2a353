"""Two replicas of two partitions: the library starts Horovod, among the ranks that hold the same layers."""

import numpy as np
import tensorflow as tf

import smdistributed.modelparallel.tensorflow as smp

smp.init()

import horovod.tensorflow as hvd

Dense = tf.keras.layers.Dense


class Net(smp.DistributedModel):
    def __init__(self):
        super().__init__()
        self.one, self.two = Dense(4), Dense(3)

    def call(self, x):
        return self.two(self.one(x))


model = Net()
optimizer = tf.keras.optimizers.SGD(0.01)


@smp.step
def step(x):
    loss = tf.reduce_mean(model(x) ** 2)
    return optimizer.get_gradients(loss, model.trainable_variables), loss


@tf.function
def train(x):
    gradients, loss = step(x)
    gradients = [gradient.accumulate() for gradient in gradients]
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return gradients, loss.reduce_mean()


for _ in range(3):
    gradients, loss = train(tf.ones([8, 8]) * (1 + smp.rdp_rank()))
losses = smp.allgather(float(loss), smp.CommGroup.RDP_GROUP)
first, second = smp.allgather([np.array(variable).tolist() for variable in gradients], smp.CommGroup.RDP_GROUP)
assert losses[0] != losses[1] and first == second, (losses, first, second)
assert np.isclose(np.array(hvd.allreduce(tf.constant(float(smp.rdp_rank())))), 0.5)
print(f"rank {smp.rank()}: replica {hvd.rank()} of {hvd.size()}", flush=True)
