"""Training goes on after each fault, in each mode, with each way to recover.

The cluster is shared by all cases, and healed before each. This process is the
chief: it has a coordinator, is a client between graphs, or calls one graph.
"""

import functools
import threading
import time
from typing import Any

import pytest
import tensorflow as tf

from tests.support import losses
from tests.support import turns
import tfps
from tfps import errors
from tfps import testing
from tfps.training import unrolling
from tfps.variables import partitioners

pytestmark = pytest.mark.tfps_cluster(workers=2, ps=3, processes=True)

_PER_EXECUTION = 2
_MODES = {
  'between graphs': tfps.BetweenGraphStrategy,
  'coordinator': tfps.ParameterServerStrategy,
  'in graph': tfps.replication.InGraphStrategy,
}
_RECOVERIES: dict[str, dict[str, Any]] = {
  'snapshots': {'every_secs': 0.3},
  'replicas': {'every_secs': 0.3, 'replicas': 1, 'take_over_secs': 60},
  'periodic replicas': {
    **{'every_secs': 0.3, 'replicas': 1, 'take_over_secs': 60},
    'replicate_every_secs': 0.2,
  },
}


class Story:
  """What happens to tasks while they are trained with."""

  def __init__(
    self, processes: testing.ProcessCluster, *, comes_home: bool
  ) -> None:
    self.events = losses.Events()
    self.processes = processes
    self._comes_home = comes_home

  def kill(self, *tasks: str, start: bool = True) -> None:
    """Kills tasks, restarts them, and waits until all are in use again."""
    before = self.events.count('back', *tasks)
    found = [tfps.Task(*_parse(task)) for task in tasks]
    for task in found:
      self.processes.kill(task.job, task.index)
    time.sleep(0.3)  # so that it is noticed at once
    for task in found if start else ():
      self.processes.start(task.job, task.index)
    self.events.wait_for('back', *tasks, after=before)

  def stay_away(self, task: str) -> None:
    """Kills a ps until another one serves it, and then starts it again.

    With a coordinator it then serves at its own address again.
    """
    moved = self.events.count('moved', task)
    back = self.events.count('back', task)
    self.kill(task, start=False)
    self.events.wait_for('moved', task, after=moved)
    self.events.wait_for('back', task, after=back)
    back = self.events.count('back', task)
    self.processes.start(*_parse(task))
    if self._comes_home:
      self.events.wait_for('back', task, after=back)

  def freeze(self, task: str) -> None:
    """Freezes a ps for a while, and then replaces it."""
    before = self.events.count('back', task)
    self.processes.freeze(*_parse(task))
    time.sleep(0.5)
    self.processes.restart(*_parse(task))
    self.events.wait_for('back', task, after=before)

  def kill_all_workers(self) -> None:
    """Kills all workers, of which one is back long before the other."""
    for index in range(2):
      self.processes.kill('worker', index)
    time.sleep(0.3)
    self.processes.start('worker', 1)
    self.events.wait_for('back', 'worker:1', after=[0])


def _parse(task: str) -> tuple[str, int]:
  job, _, index = task.partition(':')
  return job, int(index)


FAULTS = {
  'a ps is killed': lambda story: story.kill('ps:1'),
  'ps are killed one after the other': lambda story: [
    story.kill(f'ps:{index}') for index in (1, 2, 0)
  ],
  'neighbours are killed': lambda story: story.kill('ps:2', 'ps:0'),
  'all ps are killed': lambda story: story.kill('ps:0', 'ps:1', 'ps:2'),
  'a ps and a worker are killed': lambda story: story.kill('ps:0', 'worker:1'),
  'all workers are killed': lambda story: story.kill_all_workers(),
  'a ps freezes': lambda story: story.freeze('ps:0'),
  'a ps stays away': lambda story: story.stay_away('ps:1'),
}
# How many executions a fault may cut short, by each worker.
_NUM_LOSSES = {'ps are killed one after the other': 3, 'a ps stays away': 2}
# Of the ps, which no replica outlasts.
_NEED_SNAPSHOT = {'neighbours are killed', 'all ps are killed'}
# The cases that are run by default: modes, and copies on disk and on other ps.
# `test_in_graph_recovery` has the third mode, `test_ps_addresses` a ps that
# stays away, and `test_frozen` one that is frozen.
_DEFAULT = {
  ('coordinator', 'snapshots', 'all ps are killed'),
  ('coordinator', 'replicas', 'a ps and a worker are killed'),
  ('between graphs', 'snapshots', 'a ps is killed'),
}


def _cases():
  for mode in _MODES:
    for recovery in _RECOVERIES:
      for fault in FAULTS:
        # Between graphs, this process is the only worker; in graph, all workers
        # are needed.
        if mode == 'coordinator' or 'worker' not in fault:
          case = mode, recovery, fault
          marks = [] if case in _DEFAULT else [pytest.mark.exhaustive]
          yield pytest.param(*case, id='-'.join(case), marks=marks)


@pytest.mark.parametrize(('mode', 'recovery', 'fault'), _cases())
def test_training_goes_on(processes, tmp_path, mode, recovery, fault):
  story = Story(processes, comes_home=mode == 'coordinator')
  settings = dict(_RECOVERIES[recovery])
  if fault == 'a ps stays away':
    settings['take_over_secs'] = 0.3
  strategy = _MODES[mode](
    processes.cluster,
    partitioners.FixedShards(2),
    recovery=tfps.Recovery(tmp_path, on_event=story.events, **settings),
  )
  variables = losses.counters(strategy)
  with losses.trainer(strategy) as trainer:
    steps = losses.train_while(
      trainer,
      lambda batch: losses.add_one(variables),
      functools.partial(FAULTS[fault], story),
      per_execution=_PER_EXECUTION,
    )
    values = trainer.surviving(lambda: losses.values(variables))
  if fault == 'a ps stays away' and mode != 'coordinator':
    for ps in range(3):  # its host would serve it in other cases, too
      processes.kill('ps', ps)
  back = [e for e in story.events.of('back') if 'ps:' in ''.join(e.tasks)]
  set_back = [event.set_back_secs for event in back]
  # Executions that were cut short: steps that wait for nothing from a worker
  # may be done ahead on one ps, and are then all done again.
  most = steps + 2 * _PER_EXECUTION * _NUM_LOSSES.get(fault, 1)
  if fault == 'all workers are killed':
    assert steps <= min(values) <= max(values) <= most
    return
  assert set_back
  if recovery == 'snapshots' or fault in _NEED_SNAPSHOT:
    assert min(set_back) >= 0
    if recovery == 'snapshots':
      # All is as at one moment, and what came after it is done again.
      assert values == {steps}
  elif recovery == 'replicas':
    assert set(set_back) == {0.0}
    assert steps <= min(values) <= max(values) <= most
  else:
    assert min(set_back) > 0
    assert min(values) > 0


@pytest.mark.exhaustive
@pytest.mark.parametrize(
  ('mode', 'lost'),
  [
    ('coordinator', 'ps:1'),
    ('coordinator', 'worker:0'),
    ('between graphs', 'ps:1'),
    pytest.param('in graph', 'ps:1', marks=pytest.mark.exhaustive),
  ],
)
def test_a_loss_while_steps_are_unrolled_loses_nothing(
  processes, tmp_path, monkeypatch, mode, lost
):
  monkeypatch.setattr(unrolling, '_TIMES_BEFORE_UNROLLING', 0)
  story = Story(processes, comes_home=True)
  strategy = _MODES[mode](
    processes.cluster,
    recovery=tfps.Recovery(tmp_path, replicas=1, on_event=story.events),
  )
  variables = losses.counters(strategy)
  num_unrolled = 0

  def step(batch):
    nonlocal num_unrolled
    if 'while' not in tf.compat.v1.get_default_graph().name:
      num_unrolled += 1
    if num_unrolled == 1:
      processes.kill(*_parse(lost))
      processes.start(*_parse(lost))
    losses.add_one(variables)

  with losses.trainer(strategy) as trainer:
    result = trainer.train(step, losses.ones, steps=60, steps_per_execution=4)
    values = trainer.surviving(lambda: losses.values(variables))
  assert num_unrolled >= 4
  assert story.events.of('back', lost)
  assert result.step == 60
  assert 60 <= min(values) <= max(values) <= 61


@pytest.mark.exhaustive
@pytest.mark.parametrize('number', [1, 2])
def test_what_is_traced_while_a_ps_is_restored_is_executed(
  processes, tmp_path, number
):
  strategy = tfps.ParameterServerStrategy(
    processes.cluster, recovery=tfps.Recovery(tmp_path, replicas=1)
  )
  variables = losses.counters(strategy)
  with tfps.Coordinator(strategy, timeout_secs=60) as coordinator:

    def lose_and_restore():
      processes.restart('ps', 1)
      coordinator.surviving(lambda: losses.values(variables))

    lost = []

    def step(batch):
      losses.add_one(variables)
      if not lost:
        lost.append(threading.Thread(target=lose_and_restore))
        lost[0].start()
        lost[0].join()
      for _ in range(number - 1):  # with the handles of other memory
        losses.add_one(variables)

    coordinator.train(step, losses.ones, steps=10, steps_per_execution=2)
    assert losses.values(variables) == {10 * number}
  strategy.close()


@pytest.mark.exhaustive
@pytest.mark.parametrize('mode', _MODES)
def test_fit_goes_on(processes, tmp_path, mode):
  strategy = _MODES[mode](
    processes.cluster,
    partitioners.FixedShards(2),
    recovery=tfps.Recovery(tmp_path, every_secs=0.3),
  )
  history = losses.fit(strategy, processes, {1: 1})
  assert len(history.history['loss']) == 6
  assert history.history['loss'][-1] < 1e-2
  strategy.close()


@pytest.mark.parametrize(
  'mode', turns.rarely(list(_MODES), but=['coordinator'])
)
def test_without_recovery_a_lost_ps_is_an_error(processes, mode):
  strategy = _MODES[mode](processes.cluster)
  variables = losses.counters(strategy)
  fn = tf.function(lambda: losses.add_one(variables))
  if mode != 'coordinator':
    fn()
    losses.lose(processes, ('ps', 0), ('ps', 1))()
    with pytest.raises(tf.errors.OpError):
      fn()
    return
  coordinator = tfps.Coordinator(strategy, timeout_secs=20)
  coordinator.schedule(fn)
  coordinator.join()
  losses.lose(processes, ('ps', 0), ('ps', 1))()
  coordinator.schedule(fn)
  with pytest.raises((tf.errors.OpError, errors.DeadlineError)):
    coordinator.join()
  coordinator._stop()
