"""Runs `python -m tfps.launch`."""

import sys

from tfps.launch import command

if __name__ == '__main__':
  sys.exit(command.main())
