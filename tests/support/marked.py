"""A program whose steps leave marks, on which tests cut executions short."""

import contextlib

import pytest
import tensorflow as tf

from tests.support import sleeps
import tfps
from tfps.input import iterators
from tfps.input import sources
from tfps.training import step_loop
from tfps.training import step_program
from tfps.updates import attempts
from tfps.variables import partitioners

NUM_STEPS = 5


def make_strategy(cluster, folder, replicas):
  return tfps.BetweenGraphStrategy(
    cluster.cluster,
    partitioners.FixedShards(2),
    recovery=tfps.Recovery(folder, replicas=replicas),
  )


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
        strategy.sync_session.step_log, strategy.global_step
      )
    self.dataset = tf.data.Dataset.from_tensors(1).repeat()
    self._traced = {}
    self._repeated_before = 0

  def reset(self):
    """Begins anew, for another test."""
    for variable in (self.count, self.steps, self.strategy.global_step):
      variable.assign(tf.zeros(variable.shape, tf.int64))
    self._repeated_before += self.repeated

  def _step(self, batch):
    shards = self.count.variables
    values = [shard.read_value() for shard in shards]
    limits = [limit.read_value() for limit in self.limits.variables]
    # No part is a step ahead, and a step is over before the next one stops.
    with tf.control_dependencies([sleeps.slow(0.05, *values)]):
      stops = [
        tf.debugging.assert_less(value, limit)
        for value, limit in zip(values, limits, strict=True)
      ]
    with tf.control_dependencies(stops):
      one = tf.ones([1], tf.int64)
    for shard in shards:
      shard.assign_add(tf.identity(one))
    self.steps.assign_add(1)  # which needs nothing from the worker

  def begun(self, num_steps=NUM_STEPS, body=1):
    """An execution, whose loop has a body of some steps, and an attempt."""
    key = num_steps, body
    if key not in self._traced:
      self._traced[key] = self._trace(*key)
    to_do = self._traced[key]
    return to_do, attempts.Countable(self.counts, to_do)

  def _trace(self, num_steps, body):
    with self.strategy.scope():
      return step_program.trace(
        self.strategy,
        self._step,
        sources.Iterated(tf.data.IteratorSpec(self.dataset.element_spec)),
        global_step=self.strategy.global_step,
        num_steps=num_steps,
        form=step_loop.Form.of(num_steps, num_steps, body),
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
      args = to_do.args(iterators.over(self.dataset), *attempt.args)
      return attempt(to_do.function, *args)

  @property
  def values(self):
    return [int(shard.numpy()[0]) for shard in self.count.variables]

  @property
  def repeated(self):
    report = self.strategy.recovery_report()
    return report.steps_repeated - self._repeated_before
