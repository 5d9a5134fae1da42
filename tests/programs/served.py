"""The chief counts on the ps through a worker; both serve."""

from absl import app

from tfps._compat import lazy_keras

if __name__ == '__main__':
  lazy_keras.import_tensorflow()

import tensorflow as tf

import tfps

tfps.define_flags()


def main(_):
  cluster = tfps.resolve_cluster()
  if cluster.task.job != 'chief':
    return tfps.serve(cluster)
  strategy = tfps.ParameterServerStrategy(cluster)
  coordinator = tfps.Coordinator(strategy)
  with strategy.scope():
    count = tf.Variable(0)
  add = tf.function(lambda: count.assign_add(1))
  for _ in range(10):
    coordinator.schedule(add)
  coordinator.join()
  print('count', count.numpy(), flush=True)


if __name__ == '__main__':
  app.run(main)
