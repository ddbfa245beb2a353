#!/bin/sh
exec python -m torch_xla.distributed.xla_spawn --num_gpus 8 xla_digits.py "$@"
