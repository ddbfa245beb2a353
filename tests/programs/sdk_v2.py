"""Trains with SageMaker's SDK, version 2, in Local Mode: sdk_v2.py FOLDER IMAGE HOSTS. Run by the SDK's interpreter.

FOLDER holds src/train.py and data/; the model goes to FOLDER/out. Nothing of AWS is asked: the credentials are no one's.
"""

import json
import pathlib
import sys

import boto3
from sagemaker.local import LocalSession
from sagemaker.pytorch import PyTorch

folder, image, hosts = pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
(folder / "root").mkdir()
session = LocalSession(boto3.Session("none", "none", region_name="eu-west-1"))
session.config = {"local": {"local_code": True, "container_root": str(folder / "root")}}
estimator = PyTorch(
    entry_point="train.py",
    source_dir=str(folder / "src"),
    role="arn:aws:iam::000000000000:role/none",
    image_uri=image,
    instance_count=hosts,
    instance_type="local",
    hyperparameters={"epochs": 3, "image_shape": "3,224,224", "flag": True},
    distribution={"torch_distributed": {"enabled": True}},
    output_path=f"file://{folder}/out",
    sagemaker_session=session,
)
estimator.fit({"train": f"file://{folder}/data"}, job_name="sdk-two")
print("model:", json.dumps(estimator.model_data))
