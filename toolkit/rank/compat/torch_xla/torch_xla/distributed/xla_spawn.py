"""`python -m torch_xla.distributed.xla_spawn [--num_gpus N] SCRIPT ARGUMENTS...`"""

import sys

from toolkit.rank.xla import rank

if __name__ == "__main__":
    rank.run_spawned(sys.argv[1:])
