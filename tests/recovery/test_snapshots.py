"""What a lost ps had has been copied to another one."""

import time

import numpy as np
import pytest
import tensorflow as tf

from tests import waiting
from tests.recovery import losses
from tests.recovery import on_hosts
import tfps
from tfps._compat import handles
from tfps.variables import partitioners

IN_PROCESS = pytest.mark.tfps_cluster(workers=2, ps=3)
PROCESSES = pytest.mark.tfps_cluster(workers=2, ps=3, processes=True)


@pytest.fixture(
  params=[tfps.ParameterServerStrategy, tfps.BetweenGraphStrategy]
)
def make_strategy(request, tfps_cluster, tmp_path):
  made = []

  def make(every_secs=3600):
    recovery = tfps.Recovery(
      tmp_path, replicas=1, replicate_every_secs=every_secs
    )
    made.append(
      request.param(
        tfps_cluster.cluster,
        partitioners.MinSize(min_shard_bytes=8, max_shards=3),
        recovery=recovery,
      )
    )
    return made[-1]

  yield make
  for strategy in made:
    strategy.close()


def _variables(strategy):
  with strategy.scope():
    return [
      tf.Variable(tf.zeros([9, 4]), name='table'),
      tf.Variable(0, dtype=tf.int64, trainable=False, name='count'),
      tf.Variable(0.0, name='one'),
      tf.Variable(0.0, name='other'),
    ]


def _surviving(strategy):
  """What calls a function that trains."""
  if isinstance(strategy, tfps.BetweenGraphStrategy):
    return strategy.surviving
  coordinator = tfps.Coordinator(strategy, timeout_secs=60)

  def execute(function):
    coordinator.schedule(tf.function(function))
    coordinator.join()

  return execute


def _twins(strategy):
  """What is in the twins, by the names of their variables."""
  return {
    variable.name: set(np.ravel(twin.numpy()).tolist())
    for variable, twin in strategy.guard._replicas.pairs()
  }


def _twins_of(strategy, variables):
  names = [
    shard.name for v in variables for shard in getattr(v, 'variables', [v])
  ]
  twins = _twins(strategy)
  return {value for name in names for value in twins[name]}


@IN_PROCESS
def test_twins_are_as_their_variables_were_at_the_last_copy(make_strategy):
  strategy = make_strategy()
  variables = _variables(strategy)
  for variable in variables:  # as weights are loaded before training
    variable.assign(tf.fill(variable.shape, tf.constant(5, variable.dtype)))
  execute = _surviving(strategy)
  execute(lambda: losses.add_one(variables))
  assert _twins_of(strategy, variables) == {5}
  strategy.guard.keep()
  assert _twins_of(strategy, variables) == {6}
  assert losses.values(variables) == {6}


@IN_PROCESS
def test_copies_are_made_now_and_then(make_strategy):
  strategy = make_strategy(every_secs=0.05)
  variables = _variables(strategy)
  execute = _surviving(strategy)
  for value in (1, 2):
    execute(lambda: losses.add_one(variables))
    waiting.until(
      lambda value=value: _twins(strategy)[variables[1].name] == {value}
    )


@IN_PROCESS
def test_a_copy_that_fails_leaves_the_twins_of_a_ps_as_they_were(make_strategy):
  strategy = make_strategy()
  variables = _variables(strategy)
  with strategy.scope():
    lost = tf.Variable(tf.zeros([9, 4]), name='lost')  # in shards, on each ps
  strategy.guard.keep()
  before = _twins(strategy)
  losses.add_one(variables)
  shard = lost.variables[1]
  with tf.device(shard.device):
    tf.raw_ops.DestroyResourceOp(resource=shard.handle)
  handles.renew([shard])  # which has no value then, as on a ps that restarted
  with pytest.raises(tf.errors.OpError):
    strategy.guard.keep()
  on_its_ps = {
    variable.name
    for variable, _ in strategy.guard._replicas.pairs()
    if variable.device == shard.device
  }
  assert len(on_its_ps) > 1
  after = _twins(strategy)
  assert {name: after[name] for name in on_its_ps} == {
    name: before[name] for name in on_its_ps
  }


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    ({'replicas': 1, 'replicate_every_secs': 0}, 'secs=0 must be positive'),
    ({'replicate_every_secs': 1.0}, 'replicate_every_secs=1.0 and no replicas'),
  ],
)
def test_wrong_settings_are_refused(arguments, message):
  with pytest.raises(ValueError, match=message):
    tfps.Recovery('x', **arguments)


def _on_ps(variables, ps):
  return [v for v in variables if f'/task:{ps}/' in v.device]


@PROCESSES
@pytest.mark.slow
def test_only_what_a_lost_ps_had_is_set_back(tfps_cluster, tmp_path):
  events = []
  strategy = tfps.ParameterServerStrategy(
    tfps_cluster.cluster,
    recovery=tfps.Recovery(
      tmp_path,
      every_secs=3600,
      replicas=1,
      replicate_every_secs=3600,
      on_event=events.append,
    ),
  )
  variables = losses.counters(strategy)
  lost, left = (
    _on_ps(variables, 1),
    [*_on_ps(variables, 0), *_on_ps(variables, 2)],
  )
  assert lost
  assert left
  with tfps.Coordinator(strategy, timeout_secs=120) as coordinator:
    kept_at = time.monotonic()
    losses.count_to(coordinator, variables, 50)
    fn = tf.function(lambda: losses.add_one(variables))
    for round_ in range(1, 3):  # what has come back is kept, too
      for _ in range(20):
        coordinator.schedule(fn)
      coordinator.join()
      lost_at = time.monotonic()
      losses.lose(tfps_cluster, ('ps', 1))()
      assert losses.values(lost) == {50}
      assert losses.values(left) == {50 + 20 * round_}
      most_secs, kept_at = time.monotonic() - kept_at, lost_at
      back = [event.set_back_secs for event in events if event.kind == 'back']
      assert len(back) == round_
      assert 0.3 < back[-1] < most_secs
    # The twins of another one's were lost as well, and are there again.
    losses.lose(tfps_cluster, ('ps', 0))()
    assert losses.values(left) == {50 + 20 * round_}


@PROCESSES
@pytest.mark.slow
def test_a_ps_that_is_lost_within_a_copy_has_what_it_had_at_the_one_before(
  tfps_cluster, tmp_path
):
  strategy = tfps.ParameterServerStrategy(
    tfps_cluster.cluster,
    recovery=tfps.Recovery(
      tmp_path, every_secs=3600, replicas=1, replicate_every_secs=3600
    ),
  )
  variables = losses.counters(strategy)

  with tfps.Coordinator(strategy, timeout_secs=120) as coordinator:
    losses.count_to(coordinator, variables, 50)
    coordinator.schedule(tf.function(lambda: losses.add_one(variables)))
    coordinator.join()
    assert losses.lose_within(
      tfps_cluster, ('ps', 1), strategy.guard._replicas.refresh
    )
    assert losses.values(_on_ps(variables, 1)) == {50}
    losses.count_to(coordinator, variables, 60)


@PROCESSES
@pytest.mark.slow
def test_fit_goes_on(tfps_cluster, tmp_path):
  events = []
  strategy = tfps.ParameterServerStrategy(
    tfps_cluster.cluster,
    partitioners.FixedShards(2),
    recovery=tfps.Recovery(
      tmp_path,
      replicas=1,
      replicate_every_secs=0.2,
      on_event=events.append,
    ),
  )

  def is_calm():  # else two neighbours are lost at once, and go back to a cut
    coordinator = strategy._cluster_coordinator
    is_mended = coordinator is None or not (
      coordinator._cluster.failure_handler._ps.is_lost
    )
    return is_mended and not strategy.guard._address_book.moved

  history = losses.fit(strategy, tfps_cluster, {3: 0, 6: 1}, is_calm=is_calm)
  assert history.history['loss'][-1] < 1e-2
  back = [event.set_back_secs for event in events if event.kind == 'back']
  assert back
  assert max(back) < 30  # where a cut of every minute would do
  strategy.close()


@on_hosts.needs_network
@pytest.mark.slow
@on_hosts.strategies
def test_values_go_from_ps_to_ps(strategy, tmp_path):
  times = 20
  chief, ps = on_hosts.keep(strategy, tmp_path, times, 'replicas')
  num_bytes = times * on_hosts.NUM_BYTES
  assert max(each.sent for each in ps) > num_bytes
  assert max(each.received for each in ps) > num_bytes
  # None of it passes through the chief, which makes the value once.
  assert chief.sent < num_bytes / 2
  # It saves what has changed. Between graphs others may have changed it.
  if isinstance(strategy, tfps.ParameterServerStrategy):
    assert chief.received < num_bytes / 2
