"""Run the command `dimorder` as `python -m dimorder`."""

import sys

from dimorder.cli import main

if __name__ == "__main__":
    sys.exit(main())
