"""A function that is not used any more makes nobody wait for a frozen task."""

import gc
import os
import signal
import subprocess

import psutil
import pytest
import tensorflow as tf
from tensorflow.python.eager import context

import tfps

_FROZEN_SECS = 20  # unless it is thawed before


def _traced(value):
  function = tf.function(lambda: tf.constant(value) + 1.0)
  return function.get_concrete_function()


@pytest.mark.tfps_cluster(workers=1, ps=1, processes=True)
def test_it_is_removed_when_the_next_is_traced(tfps_cluster):
  strategy = tfps.ParameterServerStrategy(tfps_cluster.cluster)
  function = _traced(1.0)
  with tf.device('/job:worker/task:0'):
    assert float(function()) == 2.0
  name = function.function_def.signature.name
  tfps_cluster.freeze('worker', 0)
  pid = tfps_cluster.pid('worker', 0)
  # From elsewhere: a thread of this process might wait for the interpreter.
  thaws = ['/bin/sh', '-c', f'sleep {_FROZEN_SECS}; kill -CONT {pid}']
  with subprocess.Popen(thaws, start_new_session=True) as thawing:
    del function
    gc.collect()
    assert psutil.Process(pid).status() == psutil.STATUS_STOPPED
    os.killpg(thawing.pid, signal.SIGKILL)
  os.kill(pid, signal.SIGCONT)
  assert context.context().has_function(name)
  other = _traced(2.0)
  assert not context.context().has_function(name)
  with tf.device('/job:worker/task:0'):
    assert float(other()) == 3.0
  strategy.close()
