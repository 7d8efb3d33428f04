"""`python -m uncollapse` is the command `uncollapse`."""

import sys

from uncollapse.cli import main

if __name__ == "__main__":
    sys.exit(main())
