"""`python -m semel`: the `semel` command where no script is installed."""

import sys

from semel.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
