import itertools
import json
import math
import pathlib
import types

import pytest
import tensorflow as tf

from tests.support import turns
from tfps import errors
from tfps import testing
from tfps.strategies import parameter_server as parameter_server_lib
from tfps.testing.chaos import disks
from tfps.training import coordinator as coordinator_lib
from tfps.training import progress
from tfps.training import training_end


@pytest.fixture(scope='module')
def strategy():
  with testing.InProcessCluster(num_workers=2, num_ps=2) as cluster:
    yield parameter_server_lib.ParameterServerStrategy(cluster.cluster)


@pytest.fixture
def coordinator(strategy):
  with coordinator_lib.Coordinator(strategy, timeout_secs=60) as coordinator:
    yield coordinator


@pytest.fixture
def count(strategy):
  with strategy.scope():
    return tf.Variable(0, dtype=tf.int64)


def ones(context):
  return tf.data.Dataset.from_tensors(1.0).repeat()


def counting(variable):
  """A step that counts itself and returns its batch and the number 3."""

  def step(batch):
    variable.assign_add(1)
    return {'batch': batch, 'three': tf.constant(3)}

  return step


class Clock:
  """Seconds that go on by so much whenever they are read."""

  def __init__(self, step_secs):
    self._now, self._step_secs = 1000.0, step_secs

  def __call__(self):
    self._now += self._step_secs
    return self._now


@pytest.fixture
def set_clock(monkeypatch):
  def set_clock(step_secs):
    clock = types.SimpleNamespace(monotonic=Clock(step_secs))
    monkeypatch.setattr(progress, 'time', clock)

  return set_clock


@pytest.mark.quick
@pytest.mark.parametrize(
  ('steps', 'steps_per_execution'),
  [
    (1, 1),
    (7, 5),
    (64, 32),
    (64, 70),
    (203, 32),
    *(
      pytest.param(*pair, marks=pytest.mark.exhaustive)
      for pair in itertools.product([1, 7, 64, 203], [1, 5, 32, 70])
    ),
  ],
)
def test_exactly_the_steps_asked_for_are_applied(
  coordinator, count, steps, steps_per_execution
):
  result = coordinator.train(
    counting(count), ones, steps=steps, steps_per_execution=steps_per_execution
  )
  assert count.numpy() == coordinator.global_step.numpy() == steps
  assert (result.step, result.steps) == (steps, steps)
  assert result.metrics == {'batch': 1.0, 'three': 3.0}


def test_a_second_call_does_what_is_left(coordinator, count):
  first = coordinator.train(counting(count), ones, steps=10)
  second = coordinator.train(counting(count), ones, steps=25)
  third = coordinator.train(counting(count), ones, steps=25)
  assert [r.steps for r in (first, second, third)] == [10, 15, 0]
  assert count.numpy() == 25


def test_a_step_without_metrics_counts_all_the_same(coordinator, count):
  def step(batch):
    count.assign_add(1)

  result = coordinator.train(step, ones, steps=9, steps_per_execution=4)
  assert result.metrics == {}
  assert count.numpy() == coordinator.global_step.numpy() == 9


def test_a_step_may_branch_on_tensors_also_within_a_loop(coordinator):
  def step(batch):
    if batch > 0.5:
      return {'positive': 1.0}
    else:
      return {'positive': 0.0}

  result = coordinator.train(step, ones, steps=80, steps_per_execution=80)
  assert result.metrics == {'positive': 1.0}


def test_keras_layers_optimizers_and_variables_train(coordinator, strategy):
  with strategy.scope():
    weight = tf.Variable([3.0])

  def step(batch):
    with tf.GradientTape() as tape:
      loss = tf.reduce_sum((weight - batch) ** 2)
    weight.assign_sub(0.1 * tape.gradient(loss, weight))
    return {'loss': loss}

  result = coordinator.train(step, ones, steps=200, steps_per_execution=10)
  assert result.metrics['loss'] < 4.0
  assert weight.numpy() == pytest.approx([1.0], abs=1e-3)


def test_each_worker_has_its_own_shard(coordinator, strategy):
  with strategy.scope():
    seen = tf.Variable(tf.zeros([6], tf.int64))

  def shard(context):
    assert isinstance(context.input_pipeline_id, int)
    numbers = range(context.input_pipeline_id, 6, context.num_input_pipelines)
    return tf.data.Dataset.from_tensors(
      tf.constant(list(numbers), tf.int64)
    ).repeat()

  def step(batch):
    for number in range(6):
      seen.scatter_nd_add(
        [[number]], [tf.reduce_sum(tf.cast(batch == number, tf.int64))]
      )

  coordinator.train(step, shard, steps=60)
  counts = seen.numpy()
  assert counts.sum() == 180
  assert set(counts[0::2]) == {counts[0]}
  assert set(counts[1::2]) == {counts[1]}
  assert min(counts) > 0


def test_datasets_of_different_types_are_refused(coordinator, count):
  def uneven(context):
    return tf.data.Dataset.from_tensors(
      tf.zeros([1 + context.input_pipeline_id])
    ).repeat()

  with pytest.raises(ValueError, match=r'worker:1 are .* worker:0 are'):
    coordinator.train(counting(count), uneven, steps=1)


def test_a_dataset_that_runs_out_is_an_error(coordinator, count):
  with pytest.raises(ValueError, match=r'ran out near step \d+ of 100.*repeat'):
    coordinator.train(
      counting(count), lambda _: tf.data.Dataset.range(10), steps=100
    )
  coordinator.train(
    counting(count), ones, steps=int(coordinator.global_step.numpy()) + 5
  )


BAD_ARGUMENTS = {
  'no steps': ({'steps': 0}, 'steps=0'),
  'no steps per execution': ({'steps_per_execution': 0}, 'execution=0'),
  'no directory': ({'checkpoint': tf.train.Checkpoint()}, 'dir=None'),
  'nothing to save': ({'checkpoint_dir': 'x'}, 'checkpoint=None'),
  'period without directory': ({'checkpoint_every_secs': 1}, 'checkpoint_dir'),
  'negative period': ({'checkpoint_every_steps': -1}, 'every_steps=-1'),
}


@pytest.mark.parametrize('name', BAD_ARGUMENTS)
def test_a_wrong_argument_is_named(coordinator, count, name):
  arguments, message = BAD_ARGUMENTS[name]
  with pytest.raises(ValueError, match=message):
    coordinator.train(counting(count), ones, **{'steps': 1, **arguments})


def test_an_execution_at_least_is_to_be_in_flight(coordinator, count):
  coordinator.in_flight_per_worker = -1
  with pytest.raises(ValueError, match='in_flight_per_worker=-1'):
    coordinator.train(counting(count), ones, steps=1)


BAD_STEPS = {
  'vector metric': (lambda b: {'x': [b, b]}, r"'x' has the shape \(2,\)"),
  'no mapping': (lambda b: b, 'return metrics by name'),
}


@pytest.mark.parametrize('name', BAD_STEPS)
def test_a_wrong_result_of_a_step_is_named(coordinator, name):
  step, message = BAD_STEPS[name]
  with pytest.raises((ValueError, TypeError), match=message):
    coordinator.train(step, ones, steps=1)


def test_an_error_in_a_step_ends_training_and_leaves_no_trace(
  coordinator, count
):
  def step(batch):
    tf.debugging.assert_less(count.read_value(), tf.constant(20, tf.int64))
    count.assign_add(1)

  with pytest.raises(tf.errors.InvalidArgumentError):
    coordinator.train(step, ones, steps=100)
  assert coordinator.done()
  coordinator.train(
    counting(count), ones, steps=int(coordinator.global_step.numpy()) + 5
  )


def test_a_metric_that_is_not_a_number_ends_training(
  coordinator, strategy, tmp_path
):
  with strategy.scope():
    value = tf.Variable(1.0)

  def step(batch):
    value.assign_sub(batch)
    return {'log': tf.math.log(value)}

  with pytest.raises(FloatingPointError, match='metric log is not a number'):
    coordinator.train(
      step,
      ones,
      steps=10,
      checkpoint=tf.train.Checkpoint(value=value),
      checkpoint_dir=tmp_path,
    )
  assert not list(tmp_path.glob('*.index'))


def test_a_metric_that_is_not_a_number_may_be_put_up_with(coordinator):
  result = coordinator.train(
    lambda batch: {'log': tf.math.log(-batch)},
    ones,
    steps=10,
    stop_on_nan=False,
  )
  assert math.isnan(result.metrics['log'])


# Hooks


def test_hooks_see_the_beginning_each_execution_and_the_end(
  coordinator, count, set_clock
):
  set_clock(0.1)
  seen = []
  coordinator.train(
    counting(count),
    ones,
    steps=25,
    steps_per_execution=10,
    hooks=[seen.append],
  )
  assert [p.moment for p in seen] == ['begin', 'step', 'step', 'step', 'end']
  assert [seen[0].step, seen[-1].step] == [0, 25]
  assert seen[1].metrics == {'batch': 1.0, 'three': 3.0}
  assert [p.step for p in seen] == sorted(p.step for p in seen)
  assert seen[3].steps_per_sec > 0
  assert seen[-1].eta_secs == 0


def test_a_hook_that_raises_ends_training(coordinator, count):
  def hook(progress):
    if progress.step >= 5:
      raise KeyboardInterrupt

  with pytest.raises(KeyboardInterrupt):
    coordinator.train(counting(count), ones, steps=100_000, hooks=[hook])
  coordinator.join()
  assert count.numpy() < 1000


# Checkpoints


@pytest.fixture
def saved(count, tmp_path):
  return {
    'checkpoint': tf.train.Checkpoint(count=count),
    'checkpoint_dir': tmp_path / 'run',
    'timeout_secs': 60,
  }


def names(directory):
  return sorted(path.stem for path in directory.glob('*.index'))


def test_a_new_coordinator_resumes_from_the_latest_checkpoint(
  strategy, count, saved, caplog
):
  caplog.set_level('INFO', logger='absl')
  for steps in (100, 200):
    with coordinator_lib.Coordinator(strategy) as coordinator:
      result = coordinator.train(counting(count), ones, steps=steps, **saved)
      assert result.steps == 100
      count.assign(0)
  assert result.step == 200
  restored = tf.Variable(0, dtype=tf.int64)
  tf.train.Checkpoint(count=restored).restore(
    str(saved['checkpoint_dir'] / 'ckpt-200')
  ).expect_partial()
  assert restored.numpy() == 200
  assert 'ckpt-100' in caplog.text


def test_the_end_of_training_is_marked(coordinator, count, saved):
  marker = saved['checkpoint_dir'] / training_end.NAME
  seen = []

  def look(progress):
    seen.append((progress.moment, marker.exists()))

  for steps in (10, 20):
    coordinator.train(counting(count), ones, steps=steps, hooks=[look], **saved)
    assert json.loads(marker.read_text())['step'] == steps
  assert ('step', True) not in seen
  assert seen.count(('end', True)) == 2


def test_checkpoints_are_whole_at_their_steps(coordinator, count, saved):
  coordinator.train(
    counting(count),
    ones,
    steps=95,
    steps_per_execution=5,
    checkpoint_every_steps=20,
    max_to_keep=10,
    **saved,
  )
  found = {}
  for name in names(saved['checkpoint_dir']):
    value = tf.Variable(0, dtype=tf.int64)
    step = tf.Variable(0, dtype=tf.int64)
    tf.train.Checkpoint(count=value, global_step=step).restore(
      str(saved['checkpoint_dir'] / name)
    ).expect_partial()
    found[name] = (value.numpy(), step.numpy())
  assert found == {f'ckpt-{n}': (n, n) for n in (20, 40, 60, 80, 95)}


@pytest.mark.exhaustive
def test_checkpoints_are_saved_every_so_many_seconds(
  coordinator, count, saved, set_clock
):
  set_clock(1.0)
  coordinator.train(
    counting(count),
    ones,
    steps=40,
    checkpoint_every_secs=10,
    max_to_keep=2,
    **saved,
  )
  assert len(names(saved['checkpoint_dir'])) == 2


def _garbage_state(directory):
  (directory / 'checkpoint').write_text('garbage')


def _no_state(directory):
  (directory / 'checkpoint').unlink()


def _no_index(directory):
  (directory / 'ckpt-10.index').unlink()


def _short_index(directory):
  path = directory / 'ckpt-10.index'
  path.write_bytes(path.read_bytes()[:20])


def _short_data(directory):
  for path in directory.glob('*.data-*'):
    path.write_bytes(path.read_bytes()[:4])


def _flipped_data(directory):
  for path in directory.glob('*.data-*'):
    path.write_bytes(bytes(255 - byte for byte in path.read_bytes()))


def _no_data(directory):
  for path in directory.glob('*.data-*'):
    path.unlink()


@pytest.mark.parametrize(
  'damage',
  turns.rarely(
    [
      _garbage_state,
      _no_state,
      _no_index,
      _short_index,
      _short_data,
      _flipped_data,
      _no_data,
    ],
    but=[_garbage_state, _no_index, _flipped_data],
  ),
)
def test_a_damaged_checkpoint_is_an_error(coordinator, count, saved, damage):
  coordinator.train(counting(count), ones, steps=10, **saved)
  damage(saved['checkpoint_dir'])
  with pytest.raises(
    errors.CheckpointError, match=str(saved['checkpoint_dir'])
  ):
    coordinator.train(counting(count), ones, steps=20, **saved)
  assert count.numpy() == 10


def test_a_checkpoint_of_something_else_is_an_error(coordinator, count, saved):
  coordinator.train(counting(count), ones, steps=10, **saved)
  more = tf.train.Checkpoint(count=count, more=tf.Variable([1.0, 2.0]))
  with pytest.raises(errors.CheckpointError, match='cannot be restored'):
    coordinator.train(
      counting(count), ones, steps=20, **{**saved, 'checkpoint': more}
    )


def test_an_empty_directory_is_a_beginning(coordinator, count, saved):
  pathlib.Path(saved['checkpoint_dir']).mkdir()
  assert coordinator.train(counting(count), ones, steps=3, **saved).steps == 3


@pytest.mark.skipif(bool(disks.problem()), reason=disks.problem())
def test_a_full_disk_is_an_error_that_leaves_the_last_checkpoint(
  coordinator, count, saved
):
  with testing.small_disk(2**20) as disk:
    saved['checkpoint_dir'] = disk
    coordinator.train(counting(count), ones, steps=10, **saved)
    before = set(disk.iterdir()) - {disk / training_end.NAME}
    with (
      testing.full_disk(disk),
      pytest.raises(errors.CheckpointError, match=f'{disk}: step 20 could not'),
    ):
      coordinator.train(counting(count), ones, steps=20, **saved)
    assert set(disk.iterdir()) == before
    resumed = coordinator.train(counting(count), ones, steps=20, **saved)
    assert resumed.steps == 10
    assert names(disk) == ['ckpt-10', 'ckpt-20']
