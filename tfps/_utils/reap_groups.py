"""Kills process groups once the process that named them has ended.

Run as a file, so that neither this package nor TensorFlow is imported. It
reads '+GROUP' and '-GROUP' lines from its standard input; at the input's end,
which comes however the writer ends, it kills the groups that are left.
"""

import contextlib
import os
import signal
import sys


def main() -> None:
  """Reads to the end, then kills."""
  # A scheduler may send it to each process: the writer has to end first.
  signal.signal(signal.SIGTERM, signal.SIG_IGN)
  groups = set()
  for line in sys.stdin:
    if line[0] == '+':
      groups.add(int(line[1:]))
    else:
      groups.discard(int(line[1:]))
  for group in groups:
    with contextlib.suppress(ProcessLookupError):
      os.killpg(group, signal.SIGKILL)


if __name__ == '__main__':
  main()
