"""Lets ModelTrainer of SageMaker's SDK v3 send jobs, in local container mode: sdk_v3_sends.py. Run by its interpreter.

Standard input has a list of jobs: {"folder": ..., "how": "toolkit", "torchrun" or "basic", "distributed": options,
"source": options, "trainer": options}. A folder of each has src/ already. The `docker` that the SDK calls is
sdk_v3_docker.py: it keeps what a container would get. What the SDK raises or logs is left in sent.json.
"""

import json
import logging
import os
import sys
from typing import Any

from sagemaker.train import ModelTrainer
from sagemaker.train.configs import Compute, InputData, SourceCode
from sagemaker.train.distributed import Torchrun
from sagemaker.train.model_trainer import Mode
from toolkit_sagemaker import Toolkit, source_code


def send(job: dict[str, Any]) -> None:
    source = {"source_dir": "src", "entry_script": "train.py", **job.get("source", {})}
    is_ours = job["how"] == "toolkit"
    distributed = {"toolkit": Toolkit, "torchrun": Torchrun, "basic": lambda **_: None}[job["how"]]
    trainer = dict(job.get("trainer", {}))
    channels = [InputData(channel_name=name, data_source=path) for name, path in trainer.pop("channels", {}).items()]
    os.makedirs("root")
    ModelTrainer(
        training_mode=Mode.LOCAL_CONTAINER,
        training_image="image",
        source_code=source_code(**source) if is_ours else SourceCode(**source),
        distributed=distributed(**job.get("distributed", {})),
        compute=Compute(instance_type="local_cpu", instance_count=trainer.pop("hosts", 1)),
        input_data_config=channels,
        local_container_root=os.path.join(job["folder"], "root"),
        role="arn:aws:iam::000000000000:role/none",
        base_job_name="job",
        **trainer,
    ).train()


logging.disable(logging.INFO)
for job in json.load(sys.stdin):
    os.chdir(job["folder"])
    error = ""
    try:
        send(job)
    except Exception as raised:  # noqa: BLE001 - the test compares it
        error = f"{type(raised).__name__}: {raised}"
    with open("sent.json", "w") as file:
        json.dump({"error": error}, file)
