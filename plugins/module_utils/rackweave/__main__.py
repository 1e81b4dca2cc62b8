"""``python3 -m rackweave``: the command line without an installation."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
