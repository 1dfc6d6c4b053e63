"""`python -m samovar`: the same program as `samovar`."""

import sys

from samovar.cli import main

if __name__ == "__main__":
    sys.exit(main())
