"""What a group of workers needs of TensorFlow's collectives."""

import inspect

import pytest
import tensorflow as tf
from tensorflow.python import pywrap_tfe
from tensorflow.python.client import session as session_lib
from tensorflow.python.eager import context

from tfps._compat import collectives


def test_devices_begin_with_the_name_of_their_task():
  assert collectives.device('worker', 3) == '/job:worker/replica:0/task:3'


def test_tensorflow_enables_collectives_as_we_do_once_it_has_begun():
  source = inspect.getsource(context.Context.enable_collective_ops)
  for name in (
    'self._collective_ops_server_def = server_def',
    'pywrap_tfe.TFE_EnableCollectiveOps(self._context_handle',
    'self._initialize_logical_devices()',
    'self._clear_caches()',
  ):
    assert name in source
  assert callable(pywrap_tfe.TFE_EnableCollectiveOps)


@pytest.mark.parametrize('name', ['CollectiveReduceV2', 'CollectiveGatherV2'])
def test_a_group_is_an_input_of_a_collective(name):
  parameters = inspect.signature(getattr(tf.raw_ops, name)).parameters
  assert {'group_size', 'group_key', 'instance_key'} <= set(parameters)


def test_an_abandoned_session_is_not_closed(monkeypatch):
  session = tf.compat.v1.Session(graph=tf.Graph())
  closed = []
  theirs = session_lib.tf_session
  monkeypatch.setattr(theirs, 'TF_CloseSession', closed.append)
  collectives.abandon(session)
  session.close()
  assert not closed
