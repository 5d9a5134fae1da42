"""Changes the group of this process three times, with a variable in it."""

import os

import portpicker
import tensorflow as tf

from tfps._compat import collectives


def main() -> None:
  address = f'localhost:{portpicker.pick_unused_port()}'
  config = tf.compat.v1.ConfigProto()
  count, add = None, None
  for _ in range(3):
    collectives.enable(
      {('worker', 1): address}, 'worker', 1, leader=('worker', 1), config=config
    )
    if add is None:
      count = tf.Variable(0)
      add = tf.function(lambda count=count: count.assign_add(1))
    add()
    collectives.abort('for the test')
  print('traced', add.experimental_get_tracing_count(), flush=True)
  print('count', int(count), count.device, flush=True)


if __name__ == '__main__':
  main()
  os._exit(0)
