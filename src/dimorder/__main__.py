"""`python -m dimorder` is the command `dimorder`."""

import sys

from dimorder.cli import main

if __name__ == "__main__":
    sys.exit(main())
