"""A worker that freezes at its first start; the ps waits for its second.

Usage: freezes.py FOLDER
"""

import os
import pathlib
import signal
import sys
import time

from tfps._compat import lazy_keras

if __name__ == '__main__':
  lazy_keras.import_tensorflow()

import tfps


def main(folder: pathlib.Path) -> None:
  cluster = tfps.resolve_cluster()
  with tfps.Server(cluster):
    if cluster.task.job == 'ps':
      while not (folder / 'twice').exists():
        time.sleep(0.1)
    elif (folder / 'once').exists():
      (folder / 'twice').touch()
    else:
      (folder / 'once').touch()
      time.sleep(3)  # to be seen alive
      os.kill(os.getpid(), signal.SIGSTOP)


if __name__ == '__main__':
  main(pathlib.Path(sys.argv[1]))
  os._exit(0)
