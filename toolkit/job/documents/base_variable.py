"""The name of the variable that says where SageMaker's folders are. It imports nothing, for cli/outermost.py."""

BASE_DIR = "SAGEMAKER_BASE_DIR"
