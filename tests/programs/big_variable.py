"""A chief with a large variable, which says so and waits."""

import time

import tensorflow as tf

import tfps

_MEGABYTES = 200

strategy = tfps.ParameterServerStrategy(tfps.resolve_cluster())
with strategy.scope():
  variable = tf.Variable(tf.zeros([_MEGABYTES, 250_000]))
print('made', float(variable[-1, -1]), flush=True)
time.sleep(600)
