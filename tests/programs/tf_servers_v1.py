"""The style of TensorFlow 1: every task trains with variables on the parameter servers; the master starts first.

--end: how the worker ends: `well`, `raise`, or `waits` (until SIGTERM).
"""

import argparse
import json
import os
import signal
import time

STOP = []
signal.signal(signal.SIGTERM, lambda *_: STOP.append(True))

import tensorflow.compat.v1 as tf

parser = argparse.ArgumentParser()
parser.add_argument("--end", default="well")
end = parser.parse_args().end

config = json.loads(os.environ["TF_CONFIG"])
cluster, task = tf.train.ClusterSpec(config["cluster"]), config["task"]
name, is_chief = f"/job:{task['type']}/task:{task['index']}", task["type"] == "master"
print(f"{name} among {sorted(config['cluster'])}, {config['environment']}", flush=True)
tf.disable_eager_execution()
server = tf.train.Server(cluster, job_name=task["type"], task_index=task["index"])
with tf.device(tf.train.replica_device_setter(cluster=cluster, worker_device=name)):
    images = tf.random.normal((32, 8))
    weights = tf.get_variable("weights", (8, 1))
    more = tf.get_variable("more", (1,))
    loss = tf.reduce_mean((images @ weights + more - tf.reduce_sum(images, 1, keepdims=True)) ** 2)
    step = tf.train.get_or_create_global_step()
    joined = tf.get_variable("joined", (), initializer=tf.zeros_initializer())
    train = tf.train.GradientDescentOptimizer(0.05).minimize(loss, global_step=step)
    join, begin, missing = (
        joined.assign_add(1.0),
        tf.global_variables_initializer(),
        tf.report_uninitialized_variables(),
    )
print(f"{name} has variables on {weights.device} and {more.device}", flush=True)
tasks = 1 + len(config["cluster"]["worker"])
only = tf.ConfigProto(device_filters=["/job:ps", name])
done = 0
with tf.Session(server.target, config=only) as session:
    if is_chief:
        session.run(begin)
    while len(session.run(missing)):
        time.sleep(0.1)
    session.run(join)
    while True:
        _, last, number, joined_tasks = session.run([train, loss, step, joined])
        done += 1
        if done == 20:
            print(f"{name} trains", flush=True)
            if end == "raise" and not is_chief:
                raise FileNotFoundError("no shard 7")
        if STOP:
            saved = session.run(weights)
            print(f"{name} saved {saved.shape} on request", flush=True)
            break
        if end == "well" and number >= 300 and joined_tasks == tasks:
            break
print(f"{name} ended, loss={last:.5f}", flush=True)
