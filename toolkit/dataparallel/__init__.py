"""The open backend "smddp": what scripts written for SageMaker's data parallel library run on (docs/smddp.md).

Reached by the old names through toolkit/compat/smddp. PyTorch's collectives are PyTorch's own (gloo on CPU, NCCL on
CUDA); what is added lies in reduce/. Runs in the ranks' interpreters: nothing here needs more than the framework that
the script has imported anyway.
"""
