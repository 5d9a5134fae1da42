from concurrent import futures
import inspect
import itertools
import signal
import threading

import pytest
import tensorflow as tf

from tests.support import waiting
from tfps import errors
from tfps import testing
from tfps.strategies import parameter_server as parameter_server_lib
from tfps.training import coordinator as coordinator_lib

Stock = tf.distribute.coordinator.ClusterCoordinator


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


@pytest.fixture
def gate():
  """A function that workers execute until the gate is opened."""
  gate = Gate()
  yield gate
  gate.opened.set()


class Gate:
  def __init__(self):
    self.entered = threading.Event()
    self.opened = threading.Event()

  @property
  def function(self):
    return tf.function(self._pass)

  def _pass(self):
    tf.py_function(self._wait, [], [])
    return tf.constant(1)

  def _wait(self):
    self.entered.set()
    assert self.opened.wait(60)


def counting(variable):
  return tf.function(lambda: variable.assign_add(1))


def threads_of_coordinators():
  """Those of earlier tests are among them, and may end at any time."""
  return {
    thread
    for thread in threading.enumerate()
    if thread.name.startswith('Worker')
  }


def test_threads_that_ask_at_once_get_one_global_step(coordinator):
  begin = threading.Barrier(4)

  def ask(_):
    begin.wait(60)
    return coordinator.global_step

  with futures.ThreadPoolExecutor(4) as threads:
    found = list(threads.map(ask, range(4), timeout=60))
  assert all(step is coordinator.global_step for step in found)


@pytest.mark.parametrize(
  'method', ['schedule', 'join', 'done', 'fetch', 'create_per_worker_dataset']
)
def test_a_method_takes_the_stock_positional_arguments(method):
  stock = inspect.signature(getattr(Stock, method)).parameters
  ours = inspect.signature(getattr(coordinator_lib.Coordinator, method))
  assert list(ours.parameters)[: len(stock)] == list(stock)


@pytest.mark.quick
def test_scheduled_functions_are_executed_once_each(coordinator, count):
  fn = counting(count)
  for _ in range(100):
    coordinator.schedule(fn)
  coordinator.join()
  assert coordinator.done()
  assert count.numpy() == 100


def test_fetch_keeps_the_structure_and_passes_other_values(coordinator):
  fn = tf.function(lambda x: (x + 1, {'two': [x + 2]}))
  value = coordinator.schedule(fn, (tf.constant(1),))
  assert coordinator.fetch([value, 7, {'v': value}]) == [
    (2, {'two': [3]}),
    7,
    {'v': (2, {'two': [3]})},
  ]


def test_a_dataset_of_each_worker_is_iterated_there(coordinator):
  dataset = coordinator.create_per_worker_dataset(
    lambda: tf.data.Dataset.range(3, 6).repeat()
  )
  next_of = tf.function(lambda iterator: next(iterator))
  value = coordinator.schedule(next_of, args=(iter(dataset),))
  assert coordinator.fetch(value) == 3


def test_a_function_knows_its_worker(coordinator):
  @tf.function
  def index():
    return (
      tf.distribute.coordinator.experimental_get_current_worker_index() + 10
    )

  values = [coordinator.schedule(index) for _ in range(20)]
  assert set(coordinator.fetch(values)) <= {10, 11}


def test_a_dataset_that_cannot_be_made_fails_its_users_only(coordinator, count):
  @tf.function
  def broken():
    tf.debugging.assert_negative(count.read_value(), 'a bug')
    return tf.data.Dataset.range(3)

  iterator = iter(coordinator.create_per_worker_dataset(broken))
  next_of = tf.function(lambda iterator: next(iterator))
  coordinator.schedule(counting(count))
  coordinator.join()
  coordinator.schedule(next_of, args=(iterator,))
  with pytest.raises(Exception, match='a bug'):
    coordinator.join()
  coordinator.schedule(counting(count))
  coordinator.join()
  assert count.numpy() == 2


def test_a_dataset_outlives_an_error(coordinator, count):
  dataset = coordinator.create_per_worker_dataset(
    lambda: tf.data.Dataset.range(1).repeat()
  )
  iterator = iter(dataset)
  next_of = tf.function(lambda iterator: next(iterator))
  coordinator.schedule(next_of, args=(iterator,))
  with pytest.raises(tf.errors.InvalidArgumentError):
    coordinator.fetch(coordinator.schedule(failing(count)))
  value = coordinator.schedule(next_of, args=(iterator,))
  assert coordinator.fetch(value) == 0


def test_there_is_one_coordinator_to_a_strategy(coordinator, strategy):
  assert coordinator_lib.Coordinator(strategy) is coordinator
  assert Stock(strategy) is coordinator
  assert coordinator.timeout_secs == 60


def test_a_stock_coordinator_becomes_ours(strategy, count):
  stock = Stock(strategy)
  stock.schedule(counting(count))
  with coordinator_lib.Coordinator(strategy, timeout_secs=60) as coordinator:
    assert coordinator is stock
    coordinator.schedule(counting(count))
    coordinator.join()
  assert count.numpy() == 2


def test_only_parameter_server_strategies_have_coordinators():
  with pytest.raises(ValueError, match='needs a ParameterServerStrategy'):
    coordinator_lib.Coordinator(tf.distribute.get_strategy())


def _raise(message):
  raise RuntimeError(message)


def _raise_in_python(value):
  return tf.py_function(_raise, ['a bug'], tf.int64)


def _assert(value):
  tf.debugging.assert_negative(value, 'a bug')
  return value


def _check_numerics(value):
  negative = -1.0 - tf.cast(value, tf.float32)
  return tf.debugging.check_numerics(tf.math.log(negative), 'a bug')


def failing(variable, step=_assert):
  return tf.function(lambda: step(variable.read_value()))


def _by_join(coordinator, fails, count):
  coordinator.schedule(fails)
  coordinator.join()


def _by_fetch(coordinator, fails, count):
  coordinator.fetch(coordinator.schedule(fails))


def _by_schedule(coordinator, fails, count):
  coordinator.schedule(fails)
  while True:
    coordinator.schedule(counting(count))


def _by_done(coordinator, fails, count):
  coordinator.schedule(fails)
  while True:
    coordinator.done()


_RAISED = [_by_join, _by_fetch, _by_schedule, _by_done]
_STEPS = [_raise_in_python, _assert, _check_numerics]


@pytest.mark.parametrize(
  ('raised', 'step'),
  [
    *zip(_RAISED, [*_STEPS, _raise_in_python], strict=True),
    *(
      pytest.param(*pair, marks=pytest.mark.exhaustive)
      for pair in itertools.product(_RAISED, _STEPS)
    ),
  ],
)
def test_after_an_error_the_next_schedule_works(
  coordinator, strategy, count, step, raised
):
  fails = failing(count, step)
  ok = counting(count)
  for _ in range(3):
    for _ in range(4):
      coordinator.schedule(ok)
    with pytest.raises(tf.errors.OpError, match='a bug'):
      raised(coordinator, fails, count)
    assert not strategy.extended._being_scheduled
    before = count.numpy()
    for _ in range(4):
      coordinator.schedule(ok)
    coordinator.join()
    assert count.numpy() == before + 4


def test_what_was_queued_behind_an_error_is_cancelled(coordinator, gate, count):
  for _ in range(2):
    coordinator.schedule(gate.function)
  first = coordinator.schedule(failing(count))
  ok = counting(count)
  queued = [coordinator.schedule(ok) for _ in range(300)]
  gate.opened.set()
  with pytest.raises(tf.errors.InvalidArgumentError):
    coordinator.fetch(first)
  with pytest.raises(tf.errors.CancelledError):
    coordinator.fetch(queued[-1])
  coordinator.join()
  assert count.numpy() < 300


def test_a_fetch_of_an_old_error_cancels_nothing(coordinator, count):
  old = coordinator.schedule(failing(count))
  with pytest.raises(tf.errors.InvalidArgumentError):
    coordinator.join()
  ok = counting(count)
  for _ in range(50):
    coordinator.schedule(ok)
  with pytest.raises(tf.errors.InvalidArgumentError):
    coordinator.fetch(old)
  coordinator.join()
  assert count.numpy() == 50


WAITS = {
  'join': lambda c, value: c.join(0.3),
  'fetch': lambda c, value: c.fetch(value, 0.3),
  'wait_any': lambda c, value: c.wait_any([value], 0.3),
}


@pytest.mark.parametrize('name', WAITS)
def test_a_deadline_names_who_executes_and_cancels_nothing(
  coordinator, gate, name
):
  value = coordinator.schedule(gate.function)
  assert gate.entered.wait(60)
  with pytest.raises(
    errors.DeadlineError, match=r'worker:\d has been executing for \d+ seconds'
  ):
    WAITS[name](coordinator, value)
  gate.opened.set()
  assert coordinator.fetch(value) == 1


def test_the_constructor_sets_the_default_deadline(coordinator, gate):
  coordinator_lib.Coordinator(coordinator.strategy, timeout_secs=0.2)
  coordinator.schedule(gate.function)
  with pytest.raises(errors.DeadlineError, match='join'):
    coordinator.join()
  gate.opened.set()
  coordinator.join(60)


def test_a_queue_that_stays_full_names_who_executes(
  coordinator, gate, monkeypatch
):
  # TensorFlow's own limit is 262,144.
  monkeypatch.setattr(coordinator._queue._queue, 'maxsize', 1)
  coordinator_lib.Coordinator(coordinator.strategy, timeout_secs=0.2)
  # One for each worker, one that is queued, and one too many.
  functions = [gate.function] * 4
  with pytest.raises(
    errors.DeadlineError, match=r'schedule.*worker:\d has been executing'
  ):
    list(map(coordinator.schedule, functions))
  gate.opened.set()
  coordinator.join(60)


@pytest.fixture
def _heeds_ctrl_c():
  # A suite that runs in the background ignores it.
  before = signal.signal(signal.SIGINT, signal.default_int_handler)
  yield
  signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures('_heeds_ctrl_c')
def test_ctrl_c_gets_through_a_wait(coordinator, gate):
  coordinator.schedule(gate.function)
  main = threading.get_ident()
  timer = threading.Timer(0.5, signal.pthread_kill, args=(main, signal.SIGINT))
  timer.start()
  with pytest.raises(KeyboardInterrupt):
    coordinator.join()
  timer.join()


def test_wait_any_returns_what_is_done(coordinator, gate, count):
  slow = coordinator.schedule(gate.function)
  fast = coordinator.schedule(counting(count))
  assert coordinator.wait_any([slow, fast]) == [fast]


def test_cancel_leaves_what_is_executed(coordinator, gate, count):
  for _ in range(2):
    coordinator.schedule(gate.function)
  assert gate.entered.wait(60)
  ok = counting(count)
  for _ in range(50):
    coordinator.schedule(ok)
  coordinator.cancel()
  gate.opened.set()
  coordinator.join()
  assert count.numpy() < 50


def test_closing_stops_all_threads_and_may_be_repeated(strategy):
  before = threads_of_coordinators()
  coordinator = coordinator_lib.Coordinator(strategy)
  assert len(threads_of_coordinators() - before) == 3
  coordinator.close()
  assert threads_of_coordinators() <= before
  coordinator.close()


@pytest.mark.parametrize('name', ['schedule', 'join', 'done', 'fetch'])
def test_a_closed_coordinator_says_so(strategy, count, name):
  coordinator = coordinator_lib.Coordinator(strategy)
  coordinator.close()
  args = {'schedule': [counting(count)], 'fetch': [1]}.get(name, [])
  with pytest.raises(RuntimeError, match=f'{name}: this coordinator is closed'):
    getattr(coordinator, name)(*args)


def test_an_exception_in_the_with_block_stops_the_threads(strategy):
  before = threads_of_coordinators()
  with (
    pytest.raises(KeyError),
    coordinator_lib.Coordinator(strategy),
  ):
    raise KeyError
  assert threads_of_coordinators() <= before


def test_a_forgotten_coordinator_stops_its_threads(strategy):
  before = threads_of_coordinators()
  coordinator = coordinator_lib.Coordinator(strategy)
  coordinator.__del__()
  waiting.until(lambda: threads_of_coordinators() <= before)
  coordinator.close()
