"""`python -m toolkit.monitor.exporters CONFIG.json NAME`: one exporter of one host, until SIGTERM."""

import sys

from toolkit.monitor.exporters.exporter_process import main

sys.exit(main(sys.argv))
