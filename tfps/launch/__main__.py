"""Runs `python -m tfps.launch`."""

import sys

from tfps.launch import local

if __name__ == '__main__':
  sys.exit(local.main())
