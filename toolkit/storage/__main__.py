"""`python -m toolkit.storage TRANSFER.json`: one transfer of a host."""

import sys

from toolkit.storage.process import main

sys.exit(main(sys.argv))
