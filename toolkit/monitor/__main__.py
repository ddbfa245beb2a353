"""`python -m toolkit.monitor CONFIG.json`: the monitor of one host, until SIGTERM."""

import sys

from toolkit.monitor.process import main

sys.exit(main(sys.argv))
