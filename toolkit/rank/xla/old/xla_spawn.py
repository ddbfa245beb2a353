"""`python -m torch_xla.distributed.xla_spawn [--num_gpus N] SCRIPT ARGUMENTS...`, the Training Compiler's launcher.

In a rank of the job it runs the script in this process, as rank.py does: the job's launcher has started the processes.
"""

import sys

from toolkit.rank.xla import rank

if __name__ == "__main__":
    rank.run_spawned(sys.argv[1:])
