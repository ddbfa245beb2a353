"""TensorFlow 2's ParameterServerStrategy on the cluster in TF_CONFIG, whose master is the strategy's chief.

Workers only serve, until they are stopped.
"""

import json
import os

import tensorflow as tf

config = json.loads(os.environ["TF_CONFIG"])
tasks, task = config["cluster"], config["task"]
cluster = tf.train.ClusterSpec({"chief": tasks["master"], "worker": tasks["worker"], "ps": tasks["ps"]})
if task["type"] == "worker":
    print("a worker serves", flush=True)
    tf.distribute.Server(cluster, job_name="worker", task_index=task["index"]).join()

resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(cluster, task_type="chief", task_id=0)
strategy = tf.distribute.ParameterServerStrategy(resolver)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    weights, more = tf.Variable(tf.zeros((8, 1))), tf.Variable(tf.zeros((1,)))


@tf.function
def step():
    def replica():
        images = tf.random.normal((32, 8))
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((images @ weights + more - tf.reduce_sum(images, 1, keepdims=True)) ** 2)
        for variable, gradient in zip((weights, more), tape.gradient(loss, (weights, more))):
            variable.assign_sub(0.05 * gradient)
        return loss

    return strategy.run(replica)


losses = [coordinator.schedule(step) for _ in range(200)]
coordinator.join()
print(f"variables on {weights.device} and {more.device}", flush=True)
print(f"the chief ended, loss={losses[-1].fetch():.5f}", flush=True)
