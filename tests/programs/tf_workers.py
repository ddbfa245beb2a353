"""Workers of MultiWorkerMirroredStrategy that fit a line in a custom loop and stop together after SIGTERM.

--end: how the last worker ends after some steps: `well`, `exit` (3), `raise`, or `waits` (until SIGTERM).
"""

import argparse
import hashlib
import json
import os
import signal
import sys

STOP = []

import tensorflow as tf

parser = argparse.ArgumentParser()
parser.add_argument("--end", default="well")
end = parser.parse_args().end

task = json.loads(os.environ["TF_CONFIG"])["task"]
strategy = tf.distribute.MultiWorkerMirroredStrategy()
signal.signal(signal.SIGTERM, lambda *_: STOP.append(True))  # Only now: the strategy sets its own handler.
index, size = task["index"], strategy.num_replicas_in_sync
print(f"worker {index} of {size}, log level {os.environ['TF_CPP_MIN_LOG_LEVEL']}", flush=True)
with strategy.scope():
    weights = tf.Variable(tf.random.stateless_normal((8, 1), (index, 1)))


@tf.function
def step(images, labels, message):
    def replica(images, labels, flag):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((images @ weights - labels) ** 2)
        return tape.gradient(loss, weights), loss, flag

    gradient, loss, message = strategy.run(replica, (images, labels, message))
    weights.assign_sub(0.05 * strategy.reduce("MEAN", gradient, axis=None))
    return strategy.reduce("MEAN", loss, axis=None), strategy.reduce("SUM", message, axis=None)


number = 0
while number < 100 or end == "waits":
    images = tf.random.stateless_normal((32, 8), (number, index))
    labels = tf.reduce_sum(images, 1, keepdims=True)
    loss, stops = step(images, labels, tf.constant(float(bool(STOP))))
    number += 1
    if number == 50 and index == size - 1:
        if end == "exit":
            sys.exit(3)
        if end == "raise":
            raise FileNotFoundError("no shard 7")
    if number == 50:
        print(f"worker {index} is at step 50", flush=True)
    if float(stops):
        print(f"worker {index} saved on request", flush=True)
        break
print(
    f"worker {index} loss={float(loss):.5f} weights={hashlib.sha256(weights.numpy().tobytes()).hexdigest()}", flush=True
)
if index == 0:
    with open(os.path.join(os.environ["SM_MODEL_DIR"], "weights.txt"), "w") as file:
        file.write(str(weights.numpy().tolist()))
