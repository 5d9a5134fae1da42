"""A worker that does nothing but what it is told to.

Usage: idle.py DIRECTORY, in which files such as worker_1/3 have its orders: to
'add' 1 to each variable, or to 'keep' their values in a snapshot.
"""

import itertools
import pathlib
import sys
import time

from tfps._compat import lazy_keras

if __name__ == '__main__':
  lazy_keras.import_tensorflow()

import tensorflow as tf

from tests.support import losses
import tfps


def main(directory: str) -> None:
  strategy = tfps.BetweenGraphStrategy(
    tfps.resolve_cluster(),
    recovery=tfps.Recovery(directory, every_secs=3600, take_over_secs=0.5),
  )
  with strategy.scope():
    variables = [tf.Variable(0.0, name=f'number_{i}') for i in range(2)]
  add = tf.function(lambda: losses.add_one(variables))
  folder = pathlib.Path(directory, f'worker_{strategy.task.index}')
  for number in itertools.count(1):
    while not (folder / str(number)).exists():
      time.sleep(0.05)
    if (folder / str(number)).read_text() == 'add':
      strategy.surviving(add)
    else:
      strategy.guard.keep_writes()
    found = strategy.surviving(lambda: losses.values(variables))
    print('did', number, found, flush=True)


if __name__ == '__main__':
  main(sys.argv[1])
