"""Losses of ps whose variables are copied to other ps now and then."""

import threading
import time

import pytest
import tensorflow as tf

from tests.support import losses
import tfps
from tfps._compat import side_executor
from tfps.variables import partitioners

pytestmark = [
  pytest.mark.tfps_cluster(workers=2, ps=3, processes=True),
]


def _strategy(processes, folder, **recovery):
  """A strategy that copies variables only when it is told."""
  return tfps.ParameterServerStrategy(
    processes.cluster,
    recovery=tfps.Recovery(
      folder,
      every_secs=3600,
      replicas=1,
      replicate_every_secs=3600,
      **recovery,
    ),
  )


def _on_ps(variables, ps):
  return [v for v in variables if f'/task:{ps}/' in v.device]


@pytest.mark.exhaustive
def test_only_what_a_lost_ps_had_is_set_back(tfps_cluster, tmp_path):
  events = []
  strategy = _strategy(tfps_cluster, tmp_path, on_event=events.append)
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


@pytest.mark.exhaustive
def test_a_ps_that_is_lost_within_a_copy_has_what_it_had_at_the_one_before(
  tfps_cluster, tmp_path
):
  strategy = _strategy(tfps_cluster, tmp_path)
  variables = losses.counters(strategy)

  with tfps.Coordinator(strategy, timeout_secs=120) as coordinator:
    losses.count_to(coordinator, variables, 50)
    coordinator.schedule(tf.function(lambda: losses.add_one(variables)))
    coordinator.join()
    assert losses.lose_within(
      tfps_cluster, ('ps', 1), strategy.guard.copies.replicas.refresh
    )
    assert losses.values(_on_ps(variables, 1)) == {50}
    losses.count_to(coordinator, variables, 60)


def test_while_a_ps_is_away_those_left_are_copied(tfps_cluster, tmp_path):
  strategy = _strategy(tfps_cluster, tmp_path)
  variables = losses.counters(strategy)
  replicas = strategy.guard.copies.replicas
  replicas.copy()
  for variable in variables:
    variable.assign_add(tf.ones_like(variable))
  tfps_cluster.kill('ps', 1)
  with pytest.raises(tf.errors.OpError, match='/job:ps/replica:0/task:1'):
    replicas.copy()
  left = [pair for pair in replicas.pairs() if not _on_ps(pair, 1)]
  copied = {replica.numpy().item(0) for _, replica in left}
  assert copied == {variable.numpy().item(0) for variable, _ in left} == {0, 1}
  strategy.close()


@pytest.mark.exhaustive
def test_copies_that_are_cancelled_at_any_moment_end(tfps_cluster, tmp_path):
  strategy = _strategy(tfps_cluster, tmp_path)
  losses.counters(strategy)
  replicas = strategy.guard.copies.replicas
  replicas.copy()
  is_over, num_cancelled = threading.Event(), 0

  def copy():
    nonlocal num_cancelled
    while not is_over.is_set():
      try:
        replicas.copy()
      except tf.errors.UnavailableError:
        num_cancelled += 1

  copying = threading.Thread(target=copy)
  copying.start()
  try:
    for i in range(3000):
      time.sleep(i % 100 / 1e4)
      with side_executor.drained():
        pass
  finally:
    is_over.set()
    copying.join()
  assert num_cancelled > 100
  strategy.close()


@pytest.mark.exhaustive
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
    return is_mended and not strategy.guard.copies.address_book.moved

  history = losses.fit(
    strategy, tfps_cluster, {3: 0, 6: 1}, epochs=10, is_calm=is_calm
  )
  assert history.history['loss'][-1] < 1e-2
  back = [event.set_back_secs for event in events if event.kind == 'back']
  assert back
  assert max(back) < 30  # where a cut of every minute would do
  strategy.close()
