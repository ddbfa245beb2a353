"""A TensorFlow parameter server: serves the task in TF_CONFIG until it is killed.

Started by `train` beside the script, in the script's interpreter (train/launchers/parameter_server.py).
"""

import json
import os


def main() -> None:
    """Serve; does not return."""
    import tensorflow as tf

    config = json.loads(os.environ["TF_CONFIG"])
    task = config["task"]
    server = tf.distribute.Server(
        config["cluster"],
        job_name=task["type"],
        task_index=task["index"],
        config=tf.compat.v1.ConfigProto(device_count={"GPU": 0}),
    )
    server.join()


if __name__ == "__main__":
    main()
