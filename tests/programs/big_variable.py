"""A chief with a large variable, which says so and waits.

With a folder as its argument, each start is a job of its own, which recovers in
a folder in that.
"""

import pathlib
import sys
import time

import tensorflow as tf

import tfps

_MEGABYTES = 400

recovery = None
for name in sys.argv[1:]:
  folder = pathlib.Path(name)
  recovery = tfps.Recovery(folder / str(len(list(folder.iterdir()))))
strategy = tfps.ParameterServerStrategy(
  tfps.resolve_cluster(), recovery=recovery
)
with strategy.scope():
  variable = tf.Variable(tf.zeros([_MEGABYTES, 250_000]))
print('made', float(variable[-1, -1]), flush=True)
time.sleep(600)
