"""Steps on the wire, in both modes."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support import turns
import tfps
from tfps.wire import fused_transfer
from tfps.wire import transfers

pytestmark = pytest.mark.tfps_cluster(workers=2, ps=2)

_RNG = np.random.default_rng(0)
_START = {
  'a': _RNG.normal(size=(6, 4)).astype('f'),
  'b': _RNG.normal(size=(4,)).astype('f'),
  'table': _RNG.normal(size=(10, 4)).astype('f'),
  'other': _RNG.normal(size=(7, 4)).astype('f'),
  'double': _RNG.normal(size=(4, 4)),
  'single': _RNG.normal(size=(1, 4)).astype('f'),
}
_NUM_STEPS = 3
_X = _RNG.normal(size=(_NUM_STEPS, 3, 6)).astype('f')
_IDS = _RNG.integers(0, 7, size=(_NUM_STEPS, 3, 2)).astype('i4')
_UNFUSED = tfps.Wire(fuse=False)


class _Program:
  """A strategy with variables, and a way to run steps."""

  def __init__(self, make_strategy, cluster, wire, partitioner=None):
    self.strategy = make_strategy(cluster, partitioner, wire=wire)
    with self.strategy.scope():
      self.variables = {
        name: tf.Variable(value, name=name) for name, value in _START.items()
      }
      self.count = tf.Variable(0, dtype=tf.int64, name='count')
    # In between-graph mode they may have been there already.
    for name, value in _START.items():
      self.variables[name].assign(value)
    self.count.assign(0)

  def run(self, step, inputs):
    """Runs one execution; returns what the steps returned."""
    own = self.strategy.transfers
    number = len(inputs[0])

    def execute(*inputs):
      workspace = own.workspace()
      steps = own.steps(workspace, number)
      results = []
      for i in range(number):
        with steps.step():
          batch = [each[i] for each in inputs]
          results.append(self.strategy.run(step, args=(self, *batch)))
      with tf.control_dependencies(results):
        return tf.stack(results), workspace.counted()

    function = tf.function(tf.autograph.experimental.do_not_convert(execute))
    inputs = list(map(tf.constant, inputs))
    results, counted = transfers.trace_until_stable(
      lambda: self._call(function, inputs)
    )
    own.count(counted, number)
    return np.asarray(results)

  def _call(self, function, inputs):
    if isinstance(self.strategy, tfps.BetweenGraphStrategy):
      return function(*inputs)
    coordinator = tfps.Coordinator(self.strategy, timeout_secs=60)
    found = coordinator.fetch(coordinator.schedule(function, args=inputs))
    coordinator.join()
    return found

  def values(self):
    return [v.numpy() for v in [*self.variables.values(), self.count]]


def _subtract(program, gradients, names):
  for name, gradient in zip(names, gradients, strict=True):
    program.variables[name].assign_sub(0.1 * tf.convert_to_tensor(gradient))
  program.count.assign_add(1)


def _dense(program, x, ids):
  v = program.variables
  with tf.GradientTape() as tape:
    y = tf.tanh(x @ v['a'] + v['b'])
    y = tf.cast(y, tf.float64) @ v['double']
    loss = tf.reduce_mean(tf.square(y))
  names = ['a', 'b', 'double']
  _subtract(program, tape.gradient(loss, [v[n] for n in names]), names)
  return loss


def _sparse(program, x, ids):
  v = program.variables
  with tf.GradientTape() as tape:
    rows = tf.nn.embedding_lookup(v['table'], ids)
    rows += tf.nn.embedding_lookup(v['other'], ids[:, ::-1])
    rows += tf.nn.embedding_lookup(v['table'], (ids + 1) % 7)
    loss = tf.reduce_mean(tf.square(rows - v['b']))
  names = ['table', 'other', 'b']
  _subtract(program, tape.gradient(loss, [v[n] for n in names]), names)
  return tf.cast(loss, tf.float64)


def _lookups_of_lookups(program, x, ids):
  v = program.variables
  with tf.GradientTape() as tape:
    rows = tf.nn.embedding_lookup(v['table'], ids)
    further = tf.cast(tf.abs(rows[..., 0]) * 3, tf.int32) % 7
    loss = tf.reduce_mean(tf.nn.embedding_lookup(v['other'], further) * rows)
  names = ['table', 'other']
  _subtract(program, tape.gradient(loss, [v[n] for n in names]), names)
  return tf.cast(loss, tf.float64)


def _few_rows(program, x, ids):
  v = program.variables
  with tf.GradientTape() as tape:
    rows = tf.nn.embedding_lookup(v['single'], tf.zeros_like(ids))
    none = tf.nn.embedding_lookup(v['table'], ids[:0])
    loss = tf.reduce_sum(tf.square(rows)) + tf.reduce_sum(none)
  names = ['single', 'table']
  _subtract(program, tape.gradient(loss, [v[n] for n in names]), names)
  return tf.cast(loss, tf.float64)


def _reads_that_wait(program, x, ids):
  v = program.variables
  with tf.GradientTape() as tape:
    rows = tf.nn.embedding_lookup(v['table'], ids)
    with tf.control_dependencies([rows]):
      loss = tf.reduce_sum(rows * v['b']) + tf.reduce_sum(v['a'])
  names = ['table', 'a', 'b']
  _subtract(program, tape.gradient(loss, [v[n] for n in names]), names)
  return tf.cast(loss, tf.float64)


def _branches(program, x, ids):
  v = program.variables
  with tf.GradientTape() as tape:
    y = tf.cond(
      tf.reduce_sum(x) > 0,
      lambda: tf.reduce_sum(x @ v['a']),
      lambda: tf.reduce_sum(v['b'] * 2.0),
    )
    y += tf.reduce_sum(v['b'])
  names = ['a', 'b']
  gradients = tape.gradient(y, [v[n] for n in names])
  tf.cond(
    tf.reduce_sum(ids) % 2 == 0,
    lambda: v['b'].assign_add([1.0, 2.0, 3.0, 4.0]) is None,
    lambda: False,
  )
  y += tf.reduce_sum(v['b'])  # after the branch has perhaps written
  _subtract(program, gradients, names)
  return tf.cast(y, tf.float64)


def _reads_in_a_loop(program, x, ids):
  v = program.variables
  with tf.GradientTape() as tape:
    _, y = tf.while_loop(
      lambda i, y: i < 3,
      lambda i, y: (i + 1, tf.tanh(y * v['b'])),
      (0, x @ v['a']),
    )
    loss = tf.reduce_sum(y)
  names = ['a', 'b']
  _subtract(program, tape.gradient(loss, [v[n] for n in names]), names)
  return tf.cast(loss, tf.float64)


def _writes_in_a_loop(program, x, ids):
  b = program.variables['b']

  def body(i, total):
    total += tf.reduce_sum(b)
    b.assign_sub(0.1 * b)
    return i + 1, total + tf.reduce_sum(b)

  _, total = tf.while_loop(lambda i, _: i < 3, body, (0, tf.reduce_sum(b)))
  program.count.assign_add(1)
  return tf.cast(total, tf.float64)


def _reads_after_writes(program, x, ids):
  v = program.variables
  before = tf.reduce_sum(v['a'])
  v['a'].assign_sub(0.1 * v['a'])
  program.count.assign_add(1)
  after = tf.reduce_sum(v['a']) + tf.cast(program.count, tf.float32)
  v['b'].assign(v['b'] * 0.5 + after)
  return tf.cast(before + after + tf.reduce_sum(v['b']), tf.float64)


def _calls_a_function(program, x, ids):
  v = program.variables
  if not hasattr(program, 'inner'):
    program.inner = tf.function(lambda x: tf.tanh(x @ v['a'] + v['b']))
  with tf.GradientTape() as tape:
    loss = tf.reduce_sum(program.inner(x)) + tf.reduce_sum(v['b'])
  names = ['a', 'b']
  _subtract(program, tape.gradient(loss, [v[n] for n in names]), names)
  return tf.cast(loss, tf.float64)


_STEPS = {
  fn.__name__.strip('_'): fn
  for fn in (
    _sparse,
    _dense,
    _lookups_of_lookups,
    _few_rows,
    _reads_that_wait,
    _branches,
    _reads_in_a_loop,
    _writes_in_a_loop,
    _reads_after_writes,
    _calls_a_function,
  )
}
_RARELY = {
  *('few_rows', 'writes_in_a_loop', 'dense'),
  *('reads_after_writes', 'calls_a_function', 'sparse', 'branches'),
}
both = pytest.mark.parametrize(
  'make_strategy',
  [tfps.ParameterServerStrategy, tfps.BetweenGraphStrategy],
  ids=['coordinator', 'between-graph'],
)
between_graphs = pytest.mark.parametrize(
  'make_strategy',
  turns.rarely(
    [tfps.ParameterServerStrategy, tfps.BetweenGraphStrategy],
    but=[tfps.BetweenGraphStrategy],
  ),
  ids=['coordinator', 'between-graph'],
)


_WAYS = {
  'coordinator': (tfps.ParameterServerStrategy, 1),
  'coordinator, in shards': (tfps.ParameterServerStrategy, 2),
  'between graphs, in shards': (tfps.BetweenGraphStrategy, 2),
}


@pytest.mark.parametrize(
  ('make_strategy', 'shards', 'name'),
  turns.by_turns({name: name for name in _STEPS}, _WAYS, rarely=_RARELY),
)
def test_values_are_those_without_fusing(
  tfps_cluster, make_strategy, name, shards
):
  partitioner = tfps.partitioners.FixedShards(shards) if shards > 1 else None
  found = []
  for wire in (_UNFUSED, tfps.Wire()):
    program = _Program(make_strategy, tfps_cluster.cluster, wire, partitioner)
    results = program.run(_STEPS[name], [_X, _IDS])
    found.append([results, *program.values()])
  for unfused, fused in zip(*found, strict=True):
    np.testing.assert_array_equal(unfused, fused)
  report = program.strategy.wire_report()
  assert report.steps == _NUM_STEPS
  # A variable that a loop writes to is left to TensorFlow.
  assert (sum(report.pulled) > 0) == (name != 'writes_in_a_loop')


def _watch_and_add(program, x, ids):
  b, count = program.variables['b'], program.count
  seen = tf.cast(b[0], tf.float64), tf.cast(count, tf.float64)
  b.assign_add(tf.ones([4]))
  count.assign_add(1)
  return tf.stack(seen)


@both
@pytest.mark.parametrize('prefetch', [0, 1, 2])
def test_parameters_are_as_old_as_they_are_prefetched(
  tfps_cluster, make_strategy, prefetch
):
  wire = tfps.Wire(prefetch=prefetch)
  program = _Program(make_strategy, tfps_cluster.cluster, wire)
  program.variables['b'].assign(tf.zeros([4]))
  x = np.zeros([6, 1], 'f')
  seen, counts = program.run(_watch_and_add, [x, x]).T
  np.testing.assert_array_equal(seen, np.maximum(np.arange(6) - prefetch, 0))
  # Counters and rates are never out of date.
  np.testing.assert_array_equal(counts, np.arange(6))
  np.testing.assert_array_equal(program.variables['b'].numpy(), np.full(4, 6))


@both
def test_what_crosses_is_counted(tfps_cluster, make_strategy):
  program = _Program(make_strategy, tfps_cluster.cluster, tfps.Wire())
  program.run(_dense, [_X, _IDS])
  report = program.strategy.wire_report()
  floats = (6 * 4 + 4) * 4 + 4 * 4 * 8
  assert sum(report.pulled) == _NUM_STEPS * floats
  assert sum(report.pushed) == 0  # they were not an optimizer's
  assert 'ps:1' in str(report)


@between_graphs
def test_few_parameters_come_with_rows(
  tfps_cluster, make_strategy, monkeypatch
):
  pulled = []

  def transfer(items, route, workspace):
    if route.direction == fused_transfer.PULL:
      pulled.append((route.ps, len(items)))
    return own(items, route, workspace)

  own = fused_transfer.transfer
  monkeypatch.setattr(fused_transfer, 'transfer', transfer)
  program = _Program(make_strategy, tfps_cluster.cluster, tfps.Wire())
  program.run(_sparse, [_X[:1], _IDS[:1]])
  # Two lookups in one table, one in another, and `b`.
  assert sum(number for _, number in pulled) == 4
  assert len(pulled) == len({ps for ps, _ in pulled})


@between_graphs
def test_rows_that_have_come_are_not_sent_back(tfps_cluster, make_strategy):
  program = _Program(make_strategy, tfps_cluster.cluster, tfps.Wire())
  elsewhere = []

  def step(program, x, ids):
    # TensorFlow colocates what this does with the table, which is on a ps.
    rows = tf.nn.embedding_lookup(program.variables['table'], ids)
    operations = [rows.op]
    while operations:
      operation = operations.pop()
      own = f'loc:@{operation.name}'.encode()
      elsewhere.extend(set(operation.colocation_groups()) - {own})
      if operation.type != 'GatherV2':
        operations += [value.op for value in operation.inputs]
    return tf.reduce_sum(rows)

  program.run(step, [_X[:1], _IDS[:1]])
  assert elsewhere == []


_CODECS = {
  'float16': (tfps.codecs.Float16(), 1e-2),
  'bfloat16': (tfps.codecs.BFloat16(), 1e-1),
  'int8': (tfps.codecs.Int8(), 1e-1),
  'the largest, later the rest': (
    tfps.codecs.ErrorFeedback(tfps.codecs.TopK(0.25)),
    1.0,
  ),
}


def _by_optimizer(program, x, ids):
  v = program.variables
  with tf.GradientTape() as tape:
    y = tf.tanh(x @ v['a'] + v['b'])
    rows = tf.nn.embedding_lookup(v['table'], ids)
    # A table of one row, and one from which there is nothing to look up.
    row = tf.nn.embedding_lookup(v['single'], tf.zeros_like(ids))
    none = tf.nn.embedding_lookup(v['other'], ids[:0])
    loss = tf.reduce_mean(tf.square(y)) + tf.reduce_mean(tf.square(rows))
    loss += tf.reduce_mean(tf.square(row)) + tf.reduce_sum(none)
  names = ['a', 'b', 'table', 'single', 'other']
  variables = [v[name] for name in names]
  gradients = tape.gradient(loss, variables)
  program.optimizer.apply_gradients(zip(gradients, variables, strict=True))
  return tf.cast(loss, tf.float64)


@functools.cache
def _optimized(make_strategy, cluster, wire):
  """The values that an optimizer makes, and the number of bytes pushed."""
  program = _Program(make_strategy, cluster, wire)
  with program.strategy.scope():
    program.optimizer = keras.optimizers.SGD(0.5)
    program.optimizer.build(list(program.variables.values()))
  program.run(_by_optimizer, [_X, _IDS])
  return program.values(), sum(program.strategy.wire_report().pushed)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
  ('make_strategy', 'name'),
  [
    *((tfps.ParameterServerStrategy, name) for name in _CODECS),
    (tfps.BetweenGraphStrategy, 'int8'),
  ],
)
def test_gradients_and_parameters_travel_encoded(
  tfps_cluster, make_strategy, name
):
  codec, tolerance = _CODECS[name]
  pull = codec if codec.for_pulls else None
  wire = tfps.Wire(pull=pull, push=codec)
  exact, exact_bytes = _optimized(
    tfps.ParameterServerStrategy, tfps_cluster.cluster, tfps.Wire()
  )
  encoded, num_bytes = _optimized(make_strategy, tfps_cluster.cluster, wire)
  assert num_bytes < exact_bytes
  for value, other in zip(exact, encoded, strict=True):
    np.testing.assert_allclose(value, other, atol=tolerance)
  assert not np.array_equal(exact[0], encoded[0])
