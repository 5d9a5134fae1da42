"""Objects of a closed strategy are refused, as its servers may have ended."""

import gc

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support import turns
import tfps
from tfps import testing

_X = np.ones([8, 4], 'f')
_KINDS = turns.rarely(
  [tfps.ParameterServerStrategy, tfps.BetweenGraphStrategy],
  but=[tfps.ParameterServerStrategy],
)


def _model(strategy):
  with strategy.scope():
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
    model.compile('sgd', 'mse')
  return model


@pytest.mark.tfps_cluster(workers=1, ps=1, processes=True)
def test_nobody_waits_for_workers_that_were_told_to_end(tfps_cluster):
  strategy = tfps.ParameterServerStrategy(tfps_cluster.cluster)
  model = _model(strategy)
  model.fit(_X, _X[:, :1], verbose=0)
  strategy.close()
  with pytest.raises(RuntimeError, match='it is closed, so that its ps'):
    model.predict(_X, verbose=0)


@pytest.mark.parametrize('kind', _KINDS)
def test_what_needs_servers_that_have_ended_is_named(tmp_path, kind):
  with testing.ProcessCluster(1, 1) as processes:
    strategy = kind(
      processes.cluster, recovery=tfps.Recovery(tmp_path, timeout_secs=30)
    )
    model = _model(strategy)
    model.fit(_X, _X[:, :1], verbose=0)
    with strategy.scope():
      variable = tf.Variable([1.0, 2.0], name='pair')
      whole = tf.Variable(0.0, name='single')
    double = tf.function(lambda: 2 * whole)
    assert double() == 0
    strategy.close()
    assert processes.wait('ps', 0, timeout_secs=60) == 0

  kernel = r"Variable 'sequential\w*/dense\w*/kernel'"
  for use, name in (
    (variable.numpy, "the variable 'pair:0'"),
    (lambda: variable.assign([3.0, 4.0]), "the variable 'pair:0'"),
    (lambda: variable + 1, "the variable 'pair:0'"),
    (double, "the variable 'single:0'"),
    (model.get_weights, kernel),
    (lambda: model.save_weights(tmp_path / 'a.weights.h5'), kernel),
    (lambda: model.save(tmp_path / 'a.keras'), "in Sequential 'sequential"),
    (lambda: model(_X), kernel),
  ):
    with pytest.raises(
      tf.errors.UnavailableError,
      match=rf'{kind.__name__}: it is closed, and ps:0 has ended since. It is '
      rf'needed by .*{name}.* now load what was saved.',
    ):
      use()
  for steps, data in ((model.predict, [_X]), (model.fit, [_X, _X[:, :1]])):
    with pytest.raises(RuntimeError, match='it is closed, so that its ps'):
      steps(*data, verbose=0)
  with pytest.raises(tf.errors.UnavailableError, match='ps:0 has ended since'):
    _model(strategy)


def test_a_loss_under_the_next_strategy_is_told_as_it_is():
  with testing.ProcessCluster(1, 1) as processes:
    tfps.BetweenGraphStrategy(tfps.Cluster.local()).close()
    gc.collect()  # nothing has to remember the closed one
    strategy = tfps.ParameterServerStrategy(processes.cluster)
    with strategy.scope():
      variable = tf.Variable(1.0)
    processes.kill('ps', 0)
    with pytest.raises(tf.errors.UnavailableError, match=r'^(?!.*is closed)'):
      variable.numpy()


@pytest.mark.parametrize('is_replaced', turns.rarely([False, True], but=[True]))
def test_what_was_on_their_servers_is_deleted_without_a_word(
  monkeypatch, is_replaced
):
  with testing.ProcessCluster(1, 1) as processes:
    strategy = tfps.ParameterServerStrategy(processes.cluster)
    with tf.device('/job:ps/task:0'):
      queue = tf.queue.FIFOQueue(1, tf.int64)
    strategy.close()
    processes.wait('ps', 0, timeout_secs=60)
    if is_replaced:
      tfps.BetweenGraphStrategy(tfps.Cluster.local())
    printed = []
    monkeypatch.setattr('sys.unraisablehook', printed.append)
    del queue
    gc.collect()
    assert not printed


@pytest.mark.parametrize('kind', _KINDS)
def test_what_another_strategy_has_replaced_is_named(tmp_path, kind):
  with (
    testing.ProcessCluster(1, 1) as first,
    testing.ProcessCluster(1, 1) as second,
  ):
    strategy = kind(first.cluster)
    model = _model(strategy)
    with strategy.scope():
      variable = tf.Variable([1.0, 2.0], name='pair')
    later_model = _model(kind(second.cluster))
    assert len(later_model.get_weights()) == 2
    kernel = r"Variable 'sequential\w*/dense\w*/kernel'"
    for use, name in (
      (variable.numpy, "the variable 'pair:0'"),
      (lambda: variable.assign([3.0, 4.0]), "the variable 'pair:0'"),
      (lambda: variable + 1, "the variable 'pair:0'"),
      (model.get_weights, kernel),
      (lambda: model.save(tmp_path / 'a.keras'), "in Sequential 'sequential"),
    ):
      with pytest.raises(
        tf.errors.InvalidArgumentError,
        match=rf'{kind.__name__}: this process has made another strategy since.'
        rf'*{name}.* cannot be reached.* load them under it',
      ):
        use()
