"""The open backend "smddp": what scripts written for SageMaker's data parallel library run on (docs/smddp.md).

Scripts import it under the old names, through toolkit/rank/compat/smddp. Collectives are PyTorch's own (gloo on CPU,
NCCL on CUDA), except the hierarchical all-reduce in reduce/. It runs in the ranks' interpreters and needs only the
framework that the script has imported anyway.
"""
