"""Copies to replicas are made again where TensorFlow garbled the request."""

import pytest
import tensorflow as tf

from tfps.recovery import replicas


@pytest.mark.parametrize('garbled', [0, 1, 2])
@pytest.mark.parametrize('message', ['Unable to parse request', 'no memory'])
def test_a_copy_is_made_again_once(garbled, message):
  calls, copied = [], []

  def copy():
    calls.append(None)
    if len(calls) <= garbled:
      raise tf.errors.InternalError(None, None, f'{message} [Op:copy]')
    return tf.constant(1)

  copier = replicas.ReplicaCopier(tf.constant(0).device)
  copier._functions = {3: copy}
  may_retry = message == 'Unable to parse request'
  if garbled > may_retry:
    with pytest.raises(tf.errors.InternalError, match=message):
      copier.copy([], copied.append)
    assert not copied
  else:
    copier.copy([], copied.append)
    assert copied == [3]
  assert len(calls) == min(garbled, may_retry) + 1
