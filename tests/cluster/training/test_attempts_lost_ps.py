"""Marks of an execution that was cut short, after a ps was lost."""

import contextlib

import pytest
import tensorflow as tf

from tests.support import marked
from tests.support import turns


@pytest.mark.tfps_cluster(workers=1, ps=2)
@pytest.mark.parametrize(
  ('replicas', 'kept', 'done_by_the_second_call'),
  turns.rarely([(0, 0, marked.NUM_STEPS), (1, 3, 0)], but=[(1, 3, 0)]),
  ids=['no replica', 'a replica'],
)
def test_marks_are_those_of_the_variables_after_a_ps_was_lost(
  tfps_cluster, tmp_path, replicas, kept, done_by_the_second_call
):
  strategy = marked.make_strategy(tfps_cluster, tmp_path, replicas)
  with contextlib.closing(strategy):
    program = marked.Program(strategy)
    to_do, attempt = program.begun()
    strategy.surviving(lambda: None)  # which makes a cut
    program.call(attempt, to_do, limits=[3, 3])
    first = program.count.variables[0]
    tf.raw_ops.DestroyResourceOp(resource=first.handle)
    strategy.surviving(tf.function(lambda: first.assign_add(first * 0)))
    assert program.values == [kept] * 2
    program.call(attempt, to_do)
    assert program.values == [kept + done_by_the_second_call] * 2
    assert strategy.global_step.numpy() == attempt.num_steps
