"""Connects without a recovery first, then with one, and loses a ps.

A function of which one ps sends to the other is called after that. The number
of ps that were repaired is printed.
"""

import tempfile

import tensorflow as tf

import tfps

with (
  tempfile.TemporaryDirectory() as folder,
  tfps.testing.ProcessCluster(num_workers=1, num_ps=2) as processes,
):
  tfps.ParameterServerStrategy(processes.cluster)
  strategy = tfps.ParameterServerStrategy(
    processes.cluster,
    recovery=tfps.Recovery(folder, replicas=1, timeout_secs=60),
  )
  with strategy.scope():
    kept = tf.Variable(1.0), tf.Variable(2.0)  # one on each ps

  @tf.function
  def add():
    with tf.device('/job:ps/task:1/device:CPU:0'):
      sent = kept[1] * tf.random.uniform([], 1.0, 1.5)
    with tf.device('/job:ps/task:0/device:CPU:0'):
      return kept[0] + sent

  with tfps.Coordinator(strategy) as coordinator:
    assert 3.0 <= coordinator.schedule(add).fetch() < 4.0
    processes.kill('ps', 1)
    assert 3.0 <= coordinator.schedule(add).fetch() < 4.0
    print('repaired', strategy.recovery_report().ps_repaired)
  strategy.close()
