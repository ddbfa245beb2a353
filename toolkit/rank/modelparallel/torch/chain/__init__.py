"""Partitions that form a chain run on torch.distributed.pipelining's schedules.

The first step of a step function goes through the module server and is observed (observation.py). If the model is a
chain (layout.py) and the function calls it once and calls backward at most once, the next steps run here
(chain_steps.py): each device runs its modules in the schedule's order, the last device runs the user's function.
"""
