"""Ranks that fit a line under Horovod. --end: how the last rank ends after it, `well` or `exit` (3) or `raise`."""

import argparse
import os
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import horovod.tensorflow as hvd
import tensorflow as tf

parser = argparse.ArgumentParser()
parser.add_argument("--end", default="well")
end = parser.parse_args().end

hvd.init()
rank, size = hvd.rank(), hvd.size()
total = hvd.allreduce(tf.constant([rank + 1.0]), op=hvd.Sum).numpy()[0]
print(f"rank {rank} of {size}, local {hvd.local_rank()} of {hvd.local_size()}: sum {total:g}", flush=True)

tf.random.set_seed(rank)
weights = tf.Variable(tf.random.normal((8, 1)))
hvd.broadcast_variables([weights], root_rank=0)


@tf.function
def step(images, labels):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((images @ weights - labels) ** 2)
    tape = hvd.DistributedGradientTape(tape)
    (gradient,) = tape.gradient(loss, [weights])
    weights.assign_sub(0.05 * gradient)
    return loss


for _ in range(100):
    images = tf.random.normal((32, 8))
    loss = step(images, tf.reduce_sum(images, 1, keepdims=True))
every = hvd.allgather(tf.transpose(weights)).numpy()
print(f"rank {rank} loss={float(loss):.5f} replicas identical: {(every == every[0]).all()}", flush=True)

if rank == size - 1 and end == "exit":
    sys.exit(3)
if rank == size - 1 and end == "raise":
    raise ValueError("the last rank has had enough")
while end != "well":
    hvd.allreduce(tf.ones(1))
    time.sleep(0.05)
