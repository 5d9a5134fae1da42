"""Entry point of `python -m tfps.plan`."""

import sys

from tfps.plan import command

if __name__ == '__main__':
  sys.exit(command.main())
