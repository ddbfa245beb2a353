"""Trains with SageMaker's SDK, version 3, in local containers: sdk_v3.py FOLDER IMAGE HOSTS HOW. Run by its interpreter.

FOLDER holds src/train.py and data/; the model goes to FOLDER/root. HOW: "driver" leaves torchrun to the SDK's own driver
in the container; "train" has the SDK's script run the toolkit's `train` instead. Nothing of AWS is asked, not even credentials.
"""

import os
import pathlib
import sys

from sagemaker.train import ModelTrainer
from sagemaker.train.configs import Compute, InputData, SourceCode
from sagemaker.train.distributed import Torchrun
from sagemaker.train.model_trainer import Mode

folder, image, hosts, how = pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]
(folder / "root").mkdir()
os.chdir(folder)
ModelTrainer(
    training_mode=Mode.LOCAL_CONTAINER,
    training_image=image,
    source_code=SourceCode(source_dir="src", entry_script="train.py", command="exec train" if how == "train" else None),
    distributed=Torchrun(process_count_per_node=1),
    compute=Compute(instance_type="local_cpu", instance_count=hosts),
    hyperparameters={"epochs": 3, "image_shape": "3,224,224", "flag": True},
    input_data_config=[InputData(channel_name="train", data_source=str(folder / "data"))],
    local_container_root=str(folder / "root"),
    role="arn:aws:iam::000000000000:role/none",
    base_job_name="sdk-three",
).train()
