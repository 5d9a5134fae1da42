"""A queue of splits in clusters within this process."""

import contextlib
import itertools

import numpy as np
import pytest
import tensorflow as tf

from tests.support import shares as shares_lib
from tests.support import turns
import tfps
from tfps import errors
from tfps import input as input_lib
from tfps import testing
from tfps._compat import writes
from tfps.input import worker_reader

_LENGTHS = [1, 70, 0, 7, 120, 3, 99]
_TOTAL = sum(_LENGTHS)


def strategy_of(mode, cluster, **kwargs):
  return {
    'coordinator': tfps.ParameterServerStrategy,
    'between graphs': tfps.BetweenGraphStrategy,
    'in graph': tfps.replication.InGraphStrategy,
  }[mode](cluster, **kwargs)


_MODES = ['coordinator', 'between graphs', 'in graph']


@pytest.fixture(params=_MODES)
def strategy(request, tfps_cluster):
  return strategy_of(request.param, tfps_cluster.cluster)


def in_mode(often):
  """Runs a test in this mode, and in all with --exhaustive."""
  return pytest.mark.parametrize(
    'strategy', turns.rarely(_MODES, but=[often]), indirect=True
  )


def visits_of(strategy, total=_TOTAL):
  with strategy.scope():
    return tf.Variable(tf.zeros([total], tf.int64), trainable=False)


def visiting(visits):
  def step(numbers):
    visits.scatter_add(tf.IndexedSlices(tf.ones_like(numbers), numbers))
    return {'mean': tf.reduce_mean(numbers)}

  return step


def train(strategy, step, dataset_fn, **kwargs):
  if hasattr(strategy, 'train'):
    return strategy.train(step, dataset_fn, **kwargs)
  with tfps.Coordinator(strategy, timeout_secs=60) as coordinator:
    return coordinator.train(step, dataset_fn, **kwargs)


def queue_of(strategy, splits, **kwargs):
  with strategy.scope():
    return input_lib.SplitQueue(splits, **kwargs)


@pytest.mark.tfps_cluster(workers=1, ps=1)
@pytest.mark.parametrize(
  'strategy', turns.rarely(_MODES[:2], but=['coordinator']), indirect=True
)
def test_batches_are_buffered_on_the_workers_cpu(strategy, monkeypatch):
  devices = set()
  theirs = worker_reader.WorkerReader.gather

  def gather(*args):
    devices.add(writes.current_device())
    return theirs(*args)

  monkeypatch.setattr(worker_reader.WorkerReader, 'gather', gather)
  queue = queue_of(strategy, input_lib.Ranges(40, 20))
  train(
    strategy,
    visiting(visits_of(strategy, 40)),
    lambda context: queue.dataset(context).batch(10),
    steps=4,
  )
  (device,) = map(tf.DeviceSpec.from_string, devices)
  assert (device.job, device.task) in {('worker', 0), ('chief', 0)}
  assert (device.device_type, device.device_index) == ('CPU', 0)


@pytest.fixture
def files(tmp_path):
  """Records with the numbers from 0 on, so many in each file."""
  numbers = itertools.count()
  for i, length in enumerate(_LENGTHS):
    with tf.io.TFRecordWriter(str(tmp_path / f'part-{i}')) as writer:
      for number in itertools.islice(numbers, length):
        writer.write(str(number))
  return tfps.input.Files(tmp_path / 'part-*')


def parse(record):
  return tf.strings.to_number(record, tf.int64)


def _on(workers, devices, per_execution, mode, *, always=False):
  """A case of the test below, left to the exhaustive run by default."""
  cluster = pytest.mark.tfps_cluster(
    workers=workers, ps=2, devices_per_worker=devices
  )
  return pytest.param(
    None,
    per_execution,
    mode,
    marks=[cluster] if always else [cluster, pytest.mark.exhaustive],
    id=f'{workers} workers, {devices} devices, {per_execution} at a time, '
    f'{mode}',
  )


@pytest.mark.parametrize(
  ('tfps_cluster', 'per_execution', 'mode'),
  [
    _on(1, 1, 7, 'coordinator'),
    _on(1, 1, 7, 'in graph'),
    _on(2, 1, 1, 'coordinator', always=True),
    _on(2, 1, 1, 'in graph'),
    _on(2, 1, 20, 'coordinator'),
    _on(2, 1, 20, 'in graph'),
    _on(3, 1, 7, 'coordinator'),
    _on(3, 1, 7, 'in graph'),
    _on(2, 3, 2, 'coordinator'),
    _on(2, 3, 2, 'in graph'),
  ],
  indirect=['tfps_cluster'],
)
def test_all_is_visited_once_in_each_epoch(
  tfps_cluster, files, mode, per_execution
):
  strategy = strategy_of(mode, tfps_cluster.cluster)
  visits = visits_of(strategy)
  queue = queue_of(strategy, files, epochs=2, shuffle_seed=per_execution)

  def dataset(context):
    return queue.dataset(context).map(parse).shuffle(10).batch(8)

  result = train(
    strategy, visiting(visits), dataset, steps_per_execution=per_execution
  )
  np.testing.assert_array_equal(visits.numpy(), 2)
  num_batches = 2 * sum(-(-n // 8) for n in _LENGTHS)
  num_replicas = len(strategy.extended.replicas.devices)
  assert num_batches / num_replicas <= result.step <= num_batches
  assert str(queue.report()) == 'epoch 1: 0 to do, 0 doing, 7 done'


@pytest.mark.exhaustive
@in_mode('coordinator')
def test_metrics_are_means_over_all_steps(strategy):
  total = 60
  queue = queue_of(strategy, input_lib.Ranges(total, 7))
  result = train(
    strategy,
    lambda numbers: {'mean': tf.reduce_mean(numbers)},
    lambda context: queue.dataset(context).batch(1),
    steps_per_execution=2,
    log_every_secs=3600,
  )
  assert result.step == total
  assert result.metrics['mean'] == pytest.approx((total - 1) / 2)


@pytest.mark.exhaustive
@in_mode('in graph')
@pytest.mark.parametrize('visitation', ['exactly_once', 'at_least_once'])
def test_a_second_call_goes_on_in_the_epoch(strategy, files, visitation):
  visits = visits_of(strategy)
  queue = queue_of(strategy, files, visitation=visitation)

  def dataset(context):
    # Which is random, and has to be so in the same way again.
    return queue.dataset(context).map(parse).shuffle(200).batch(8)

  for steps in (9, 25, None):
    result = train(
      strategy, visiting(visits), dataset, steps=steps, steps_per_execution=4
    )
    assert steps is None or result.step == steps
  counts = visits.numpy()
  assert counts.min() == 1
  assert counts.max() == {'exactly_once': 1, 'at_least_once': 2}[visitation]


@pytest.mark.parametrize('strategy', _MODES, indirect=True)
@pytest.mark.tfps_cluster(workers=1, ps=1)
def test_a_queue_that_is_done_already_is_told(strategy, caplog):
  queue = queue_of(strategy, input_lib.Ranges(6, 3))
  for steps in (6, 0):
    result = train(strategy, lambda batch: None, _of_one(queue))
    assert result.steps == steps
    told = [m for m in caplog.messages if 'nothing to train on' in m]
    assert len(told) == (not steps)
  assert 'train: ' in told[0]
  assert '2 splits, of which the first is [0, 3),' in told[0]


def _of_one(queue):
  return lambda context: queue.dataset(context).batch(1)


@pytest.mark.parametrize('strategy', _MODES, indirect=True)
@pytest.mark.parametrize('epochs', [1, None])
def test_splits_without_batches_are_told(strategy, epochs):
  queue = queue_of(strategy, input_lib.Ranges(40, 10), epochs=epochs)
  with pytest.raises(ValueError, match='none of the 4 splits has a batch'):
    train(
      strategy,
      lambda batch: None,
      lambda context: queue.dataset(context).batch(11, drop_remainder=True),
      steps=9,
    )


@in_mode('coordinator')
def test_some_splits_may_be_without_batches(strategy):
  queue = queue_of(strategy, input_lib.Ranges(40, 10), epochs=3)
  result = train(
    strategy,
    lambda batch: None,
    lambda context: queue.dataset(context).filter(lambda n: n == 15).batch(2),
  )
  assert result.steps == 3


@in_mode('between graphs')
def test_each_epoch_may_have_another_order(strategy):
  # With 0, which an earlier test may have left, TensorFlow takes no tensors.
  tf.random.set_seed(1)
  queue = queue_of(strategy, input_lib.Ranges(60, 20), epochs=None)
  with strategy.scope():
    last = tf.Variable(tf.zeros([6, 20], tf.int64), trainable=False)

  def step(batch):
    numbers, epoch = batch
    row = epoch[0] % 2 * 3 + numbers[0] // 20
    last.scatter_update(tf.IndexedSlices(numbers, row))

  def dataset(context):
    return (
      queue.dataset(context)
      .shuffle(20, seed=queue.epoch())
      .map(lambda number: (number, queue_epoch))
      .batch(20)
    )

  def with_epoch(context):
    nonlocal queue_epoch
    queue_epoch = queue.epoch()
    return dataset(context)

  queue_epoch = None
  train(strategy, step, with_epoch, steps=6)
  first, second = np.split(last.numpy(), 2)
  assert (np.sort(first) == np.sort(second)).all()
  assert (first != second).any()


def test_a_checkpoint_is_gone_on_with_by_other_workers(tmp_path, files):
  visits = np.zeros([_TOTAL], np.int64)
  for workers, steps in ((2, 20), (1, None)):
    with testing.InProcessCluster(num_workers=workers, num_ps=2) as cluster:
      strategy = tfps.ParameterServerStrategy(cluster.cluster)
      own = visits_of(strategy)
      queue = queue_of(strategy, files, visitation='exactly_once')
      train(
        strategy,
        visiting(own),
        lambda context, queue=queue: queue.dataset(context).map(parse).batch(8),
        steps=steps,
        steps_per_execution=3,
        checkpoint=tf.train.Checkpoint(),
        checkpoint_dir=tmp_path / 'checkpoints',
      )
      visits += own.numpy()
  np.testing.assert_array_equal(visits, 1)


@in_mode('coordinator')
def test_a_queue_that_no_checkpoint_has_begins_anew(strategy, tmp_path, caplog):
  caplog.set_level('INFO', logger='absl')
  queues = []

  def dataset_fn(context):
    if not queues:
      return tf.data.Dataset.range(10).repeat()
    return queues[-1].dataset(context).batch(2)

  for steps, counts in ((4, ''), (14, '0 of 1'), (24, '1 of 2')):
    result = train(
      strategy,
      lambda batch: None,
      dataset_fn,
      steps=None if queues else steps,
      checkpoint=tf.train.Checkpoint(),
      checkpoint_dir=tmp_path,
    )
    assert result.step == steps
    assert f'progress of {counts}' in caplog.text or not counts
    queues.append(queue_of(strategy, input_lib.Ranges(20, 10)))


def test_progress_of_other_files_is_refused(tfps_cluster, tmp_path):
  complaint = 'that of other splits than these 15.*first is .0, 20.'
  for steps, splits, expect in (
    (1, input_lib.Ranges(300, 21), contextlib.nullcontext()),
    (2, input_lib.Ranges(300, 20), pytest.raises(ValueError, match=complaint)),
    (2, input_lib.Ranges(300, 50), pytest.raises(errors.CheckpointError)),
  ):
    strategy = strategy_of('coordinator', tfps_cluster.cluster)
    queue = queue_of(strategy, splits)
    with expect:
      train(
        strategy,
        visiting(visits_of(strategy)),
        lambda context, queue=queue: queue.dataset(context).batch(8),
        steps=steps,
        checkpoint=tf.train.Checkpoint(),
        checkpoint_dir=tmp_path,
      )


def _twice(queue, other):
  return lambda context: tf.data.Dataset.zip(
    queue.dataset(context), other.dataset(context)
  )


_BAD_DATASETS = {
  'repeat': (
    lambda queue, other: lambda context: queue.dataset(context).repeat(),
    5,
    r'the dataset of a split has no end. Do not repeat\(\)',
  ),
  'two queues': (_twice, 5, 'reads from two queues'),
  'no dataset': (
    lambda queue, other: lambda context: [queue.dataset(context)],
    5,
    'is not a tf.data.Dataset',
  ),
  'endless': (
    lambda queue, other: other.dataset,
    None,
    'steps=None is for input that ends',
  ),
  'no queue': (
    lambda queue, other: lambda context: tf.data.Dataset.range(5),
    None,
    'steps=None is for input that ends',
  ),
}
_BY_MODE = {mode: (mode,) for mode in _MODES}


@pytest.mark.parametrize(
  ('strategy', 'bad'),
  turns.by_turns(_BAD_DATASETS, _BY_MODE),
  indirect=['strategy'],
)
def test_bad_datasets_are_told(strategy, bad):
  dataset_fn, steps, complaint = bad
  queue = queue_of(strategy, input_lib.Ranges(10, 5))
  other = queue_of(strategy, input_lib.Ranges(10, 5), epochs=None)
  with pytest.raises(ValueError, match=complaint):
    train(strategy, lambda batch: None, dataset_fn(queue, other), steps=steps)


@pytest.mark.parametrize(
  ('strategy', 'damage'),
  turns.by_turns({damage: damage for damage in ('gone', 'damaged')}, _BY_MODE),
  indirect=['strategy'],
)
def test_a_file_that_cannot_be_read_is_named(strategy, tmp_path, damage):
  paths = [str(tmp_path / name) for name in ('one', 'two')]
  for path in paths:
    with tf.io.TFRecordWriter(path) as writer:
      writer.write('1')
  queue = queue_of(strategy, input_lib.Files(paths))
  if damage == 'gone':
    (tmp_path / 'two').unlink()
  else:
    (tmp_path / 'two').write_bytes(b'x' * 100)
  with pytest.raises(
    tfps.InputError, match=r'/two could not be read by (worker|chief):0: '
  ):
    train(strategy, lambda batch: None, queue.dataset, steps_per_execution=4)


@pytest.mark.parametrize('strategy', _MODES[:1], indirect=True)
def test_a_range_of_indices_in_a_steps_error_is_no_split(strategy):
  queue = queue_of(strategy, input_lib.Ranges(10, 10))
  with strategy.scope():
    table = tf.Variable(tf.zeros([10, 2]))

  def step(numbers):
    return {'sum': tf.reduce_sum(tf.nn.embedding_lookup(table, numbers + 1))}

  with pytest.raises(
    tf.errors.InvalidArgumentError, match=r'= 10 is not in \[0, 10\)'
  ):
    train(strategy, step, lambda context: queue.dataset(context).batch(10))


@in_mode('coordinator')
@pytest.mark.parametrize('cause', ['parsing', 'another file'])
def test_a_split_whose_data_is_wrong_is_named(strategy, tmp_path, cause):
  for name, content in (('one', '1'), ('two', 'x')):
    with tf.io.TFRecordWriter(str(tmp_path / name)) as writer:
      writer.write(content)
  queue = queue_of(strategy, input_lib.Files(f'{tmp_path}/*'))

  def parse(record):
    if cause == 'parsing':
      return tf.strings.to_number(record)
    found = tf.io.read_file(str(tmp_path / 'one'))
    missing = tf.strings.join([str(tmp_path), '/images/', record])
    return tf.cond(
      record == '1', lambda: found, lambda: tf.io.read_file(missing)
    )

  with pytest.raises(
    tfps.InputError, match=r'/two could not be read by (worker|chief):\d: .*x'
  ) as caught:
    train(
      strategy,
      lambda batch: None,
      lambda context: queue.dataset(context).map(parse),
      steps_per_execution=4,
    )
  assert isinstance(caught.value.__cause__, tf.errors.OpError)


_WAITING = {
  'Sync': tfps.updates.Sync(),
  'Sync with a backup': tfps.updates.Sync(backup_workers=1),
  'BoundedStaleness': tfps.updates.BoundedStaleness(1),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize(
  ('policy', 'visitation'),
  [
    ('Sync', 'at_least_once'),
    ('BoundedStaleness', 'exactly_once'),
    ('Sync with a backup', 'exactly_once'),
  ],
)
@pytest.mark.tfps_cluster(workers=2, ps=2)
def test_workers_that_wait_for_each_other_visit_all(
  tfps_cluster, policy, visitation
):
  strategy = strategy_of(
    'coordinator', tfps_cluster.cluster, updates=_WAITING[policy]
  )
  shares = shares_lib.Shares(strategy, _TOTAL)
  queue = queue_of(
    strategy, input_lib.Ranges(_TOTAL, 41), visitation=visitation
  )
  num_batches = 7 * 6 + 2  # in eight splits, of which the last has two
  result = train(
    strategy,
    shares.step,
    lambda context: queue.dataset(context).batch(8),
    steps_per_execution=3,
  )
  np.testing.assert_array_equal(shares.visits.numpy(), 1)
  updates = strategy.updates_report().updates
  assert result.step == updates == int(shares.optimizer.iterations)
  assert shares.numpy().sum() == pytest.approx(updates)
  if policy != 'Sync with a backup':  # with which some are late
    assert np.count_nonzero(shares.numpy()) == num_batches
    assert strategy.updates_report().late == 0
  if policy == 'Sync':
    assert num_batches / 2 <= updates < num_batches


@pytest.mark.exhaustive
@pytest.mark.tfps_cluster(workers=2, ps=2)
def test_what_is_beyond_the_last_update_is_not_visited(tfps_cluster):
  strategy = strategy_of(
    'coordinator', tfps_cluster.cluster, updates=_WAITING['Sync']
  )
  shares = shares_lib.Shares(strategy, 200)
  queue = queue_of(
    strategy, input_lib.Ranges(200, 25), visitation='exactly_once'
  )
  num_steps = 0
  for steps in (7, None):
    result = train(
      strategy,
      shares.step,
      lambda context: queue.dataset(context).batch(5),
      steps=steps,
      steps_per_execution=3,
    )
    num_steps += result.step
    assert num_steps == strategy.updates_report().updates
    assert steps in (None, num_steps)
  assert np.count_nonzero(shares.numpy()) == 40
  assert shares.visits.numpy().min() == 1
  assert str(queue.report()) == 'epoch 0: 0 to do, 0 doing, 8 done'


def test_a_step_with_two_updates_of_all_workers_is_refused(tfps_cluster):
  strategy = strategy_of(
    'coordinator', tfps_cluster.cluster, updates=_WAITING['Sync']
  )
  first, second = (shares_lib.Shares(strategy, _TOTAL) for _ in range(2))
  queue = queue_of(strategy, input_lib.Ranges(10, 5))

  def step(numbers):
    first.step(numbers)
    second.step(numbers)

  with pytest.raises(ValueError, match='more than once'):
    train(strategy, step, lambda context: queue.dataset(context).batch(5))
