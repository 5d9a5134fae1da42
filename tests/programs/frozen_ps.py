"""A client that assigns to a variable on a ps that it has just frozen.

Usage: frozen_ps.py STRATEGY PID
"""

import os
import signal
import sys

from tfps._compat import lazy_keras

if __name__ == '__main__':
  lazy_keras.import_tensorflow()

import tensorflow as tf

import tfps
from tfps.testing import _stops


def main(strategy_class: str, pid: int) -> None:
  strategy = getattr(tfps, strategy_class)(tfps.resolve_cluster())
  with strategy.scope():
    variable = tf.Variable(0.0)
  os.kill(pid, signal.SIGSTOP)
  _stops.wait(tfps.Task('ps', 0), pid)  # until then it may answer
  try:
    variable.assign(1.0)
  except tf.errors.UnavailableError as error:
    print(error, flush=True)


if __name__ == '__main__':
  main(sys.argv[1], int(sys.argv[2]))
  os._exit(0)
