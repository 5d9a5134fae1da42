"""What is done of an execution that was cut short, and what is counted."""

import contextlib

import numpy as np
import pytest
import tensorflow as tf

from tests.recovery import losses
import tfps
from tfps import attempts
from tfps import execution
from tfps import marks as marks_lib
from tfps import partitioners


@pytest.mark.parametrize(
  ('steps', 'marked', 'least', 'most'),
  [
    ([0, 0], {0, 1}, 0, 1),
    ([3, 3], {0, 1}, 3, 4),
    ([4, 3], {0, 1}, 3, 5),
    ([1, 0], {0, 1}, 0, 2),
    ([5, 3], {0, 1}, 3, 5),
    ([5, 5], {0, 1}, 5, 5),
    ([6, 5], {0, 1}, 5, 5),  # ps:0 has the global step
    ([3, 0], {0}, 3, 4),  # no step writes to ps:1
    ([3, 0], set(), 0, 1),
  ],
)
def test_what_marks_tell_of_five_steps(steps, marked, least, most):
  applied = attempts.Applied.of(steps, marked, 5)
  assert (applied.least, applied.most) == (least, most)


def test_ids_are_apart_and_keep_their_slots():
  ids = [
    marks_lib.Marks([], slots=[slot] * 3, own='worker:0', tell=print).new_id()
    for slot in (0, 1, 1)
  ]
  steps = marks_lib.MAX_STEPS + 2
  taken = {number for first in ids for number in (first, first + steps - 1)}
  assert len(taken) == 6
  assert all(0 < number < 1 << 63 for number in taken)


@pytest.fixture(params=[0, 1], ids=['no replica', 'a replica'])
def strategy(request, tfps_cluster, tmp_path):
  strategy = tfps.BetweenGraphStrategy(
    tfps_cluster.cluster,
    partitioners.FixedShards(2),
    recovery=tfps.Recovery(tmp_path, replicas=request.param),
  )
  yield strategy
  strategy.close()


IN_PROCESS = pytest.mark.tfps_cluster(workers=1, ps=2)
NUM_STEPS = 5


class Program:
  """Adds one to a variable of which a part is on each ps."""

  def __init__(self, strategy):
    self.strategy = strategy
    with strategy.scope():
      self.count = tf.Variable(tf.zeros([2], tf.int64), name='count')
      self.steps = tf.Variable(0, dtype=tf.int64, name='steps')
      self.limits = tf.Variable(
        tf.fill([2], tf.int64.max), name='limits', trainable=False
      )
      self.counts = attempts.Counts(
        strategy, strategy.marks, strategy.global_step
      )
    self.dataset = tf.data.Dataset.from_tensors(1).repeat()

  def _step(self, batch):
    shards = self.count.variables
    values = [shard.read_value() for shard in shards]
    limits = [limit.read_value() for limit in self.limits.variables]
    # No part is a step ahead, and a step is over before the next one stops.
    with tf.control_dependencies([losses.slow(0.05, *values)]):
      stops = [
        tf.debugging.assert_less(value, limit)
        for value, limit in zip(values, limits, strict=True)
      ]
    with tf.control_dependencies(stops):
      one = tf.ones([1], tf.int64)
    for shard in shards:
      shard.assign_add(tf.identity(one))
    self.steps.assign_add(1)  # which needs nothing from the worker

  def trace(self, num_steps=NUM_STEPS, **unroll):
    with self.strategy.scope():
      return execution.trace(
        self.strategy,
        self._step,
        execution.Iterated(tf.data.IteratorSpec(self.dataset.element_spec)),
        global_step=self.strategy.global_step,
        num_steps=num_steps,
        **unroll,
      )

  def call(self, attempt, to_do, *, limits=None):
    """Calls the function, in which a part stops at its limit."""
    none = [tf.int64.max] * 2
    self.limits.assign(
      tf.constant(none if limits is None else limits, tf.int64)
    )
    fails = limits is not None and min(limits) < to_do.num_steps
    raises = pytest.raises(tf.errors.InvalidArgumentError)
    with raises if fails else contextlib.nullcontext():
      return attempt(to_do.function, iter(self.dataset), *attempt.args)

  @property
  def values(self):
    return [int(shard.numpy()[0]) for shard in self.count.variables]

  @property
  def repeated(self):
    return self.strategy.recovery_report().steps_repeated


def begun(strategy, **trace):
  """A program, its execution, and an attempt at that."""
  program = Program(strategy)
  to_do = program.trace(**trace)
  return program, to_do, attempts.Countable(program.counts, to_do)


@IN_PROCESS
@pytest.mark.parametrize('max_unroll', [32, 2])
def test_what_is_applied_everywhere_is_counted_and_not_repeated(
  strategy, max_unroll
):
  program, to_do, attempt = begun(strategy, max_unroll=max_unroll)
  program.call(attempt, to_do, limits=[3, 3])
  assert program.call(attempt, to_do) is None
  assert attempt.num_steps == strategy.global_step.numpy() == 3
  assert program.values == [3, 3]
  assert program.repeated == 1  # at most


@IN_PROCESS
def test_a_step_that_was_applied_on_one_ps_is_told(strategy):
  program, to_do, attempt = begun(strategy)
  program.call(attempt, to_do, limits=[2, 2])
  (slot,) = np.flatnonzero(strategy.marks._rings[1].numpy())
  strategy.marks._rings[1].scatter_update(
    tf.IndexedSlices(tf.constant([attempt.id + 3], tf.int64), [slot])
  )
  assert program.call(attempt, to_do) is None
  assert attempt.num_steps == 2
  assert program.repeated == 2


@IN_PROCESS
def test_where_nothing_is_applied_everywhere_all_is_done_again(strategy):
  program, to_do, attempt = begun(strategy)
  program.call(attempt, to_do, limits=[0, 0])
  assert program.call(attempt, to_do) is not None
  assert program.values == [NUM_STEPS] * 2
  assert attempt.num_steps == strategy.global_step.numpy() == NUM_STEPS
  assert program.repeated == 1  # at most


@IN_PROCESS
def test_what_could_be_done_in_advance_waits_for_its_step(strategy):
  program, to_do, attempt = begun(strategy)
  program.call(attempt, to_do, limits=[1, 1])
  assert program.steps.numpy() <= 2


@IN_PROCESS
def test_what_was_done_and_counted_is_not_done_again(strategy):
  program, to_do, attempt = begun(strategy)
  assert program.call(attempt, to_do) is not None
  assert program.call(attempt, to_do) is None
  assert attempt.num_steps == strategy.global_step.numpy() == NUM_STEPS
  assert program.values == [NUM_STEPS] * 2
  assert program.repeated == 0


@IN_PROCESS
def test_what_was_cut_short_again_is_counted_once(strategy):
  program, to_do, attempt = begun(strategy)
  program.call(attempt, to_do, limits=[3, 3])
  # As if nobody had learnt what the second call returned.
  assert program.call(attempt, to_do) is None
  again = attempts.Countable(program.counts, to_do)
  again.id, again._task = attempt.id, attempt._task
  assert program.call(again, to_do) is None
  assert strategy.global_step.numpy() == 3


@IN_PROCESS
@pytest.mark.parametrize(
  ('strategy', 'kept', 'done_by_the_second_call'),
  [(0, 0, NUM_STEPS), (1, 3, 0)],
  indirect=['strategy'],
  ids=['no replica', 'a replica'],
)
def test_marks_are_those_of_the_variables_after_a_ps_was_lost(
  strategy, kept, done_by_the_second_call
):
  program, to_do, attempt = begun(strategy)
  strategy.surviving(lambda: None)  # which makes a cut
  program.call(attempt, to_do, limits=[3, 3])
  first = program.count.variables[0]
  tf.raw_ops.DestroyResourceOp(resource=first.handle)
  strategy.surviving(tf.function(lambda: first.assign_add(first * 0)))
  assert program.values == [kept] * 2
  program.call(attempt, to_do)
  assert program.values == [kept + done_by_the_second_call] * 2
  assert strategy.global_step.numpy() == attempt.num_steps


@IN_PROCESS
def test_single_steps_are_not_marked_and_told_when_repeated(strategy):
  program, to_do, attempt = begun(strategy, num_steps=1)
  assert attempt.args == ()
  program.call(attempt, to_do, limits=[0, 0])
  assert program.call(attempt, to_do) is not None
  assert program.repeated == 1


@IN_PROCESS
def test_who_only_counts_repeats_all_and_tells_how_much(strategy):
  program, to_do, _ = begun(strategy)
  attempt = attempts.Attempt(strategy.marks, NUM_STEPS)
  program.call(attempt, to_do, limits=[3, 3])
  assert program.call(attempt, to_do) is not None
  assert program.values == [3 + NUM_STEPS] * 2
  assert program.repeated == 4  # at most


@IN_PROCESS
def test_rings_are_in_no_placement_report(strategy):
  report = strategy.placement_report()
  assert not [n for names in report.variables for n in names if 'marks' in n]
  keys = [entry.key for entry in strategy.guard._inventory.entries()]
  assert {'tfps/marks/0', 'tfps/marks/1'} <= set(keys)
