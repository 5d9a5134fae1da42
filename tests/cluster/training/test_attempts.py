"""What is done of an execution that was cut short, and what is counted."""

import numpy as np
import pytest
import tensorflow as tf

from tests.support import marked
from tests.support import turns
from tfps import testing
from tfps.updates import attempts


@pytest.fixture(scope='module')
def shared_program(tmp_path_factory):
  folder = tmp_path_factory.mktemp('snapshots')
  with testing.InProcessCluster(num_workers=1, num_ps=2) as cluster:
    strategy = marked.make_strategy(cluster, folder, replicas=1)
    yield marked.Program(strategy)
    strategy.close()


@pytest.fixture
def program(shared_program):
  shared_program.reset()
  return shared_program


@pytest.mark.parametrize(
  'body', turns.rarely([marked.NUM_STEPS, 2, 1], but=[2])
)
def test_what_is_applied_everywhere_is_counted_and_not_repeated(program, body):
  to_do, attempt = program.begun(body=body)
  program.call(attempt, to_do, limits=[3, 3])
  assert program.call(attempt, to_do) is None
  assert attempt.num_steps == program.strategy.global_step.numpy() == 3
  assert program.values == [3, 3]
  assert program.repeated == 1  # at most


def test_a_step_that_was_applied_on_one_ps_is_told(program):
  to_do, attempt = program.begun()
  program.call(attempt, to_do, limits=[2, 2])
  (slot,) = np.flatnonzero(
    program.strategy.sync_session.step_log._rings[1].numpy()
  )
  program.strategy.sync_session.step_log._rings[1].scatter_update(
    tf.IndexedSlices(tf.constant([attempt.id + 3], tf.int64), [slot])
  )
  assert program.call(attempt, to_do) is None
  assert attempt.num_steps == 2
  assert program.repeated == 2


def test_where_nothing_is_applied_everywhere_all_is_done_again(program):
  to_do, attempt = program.begun()
  program.call(attempt, to_do, limits=[0, 0])
  assert program.call(attempt, to_do) is not None
  assert program.values == [marked.NUM_STEPS] * 2
  assert (
    attempt.num_steps
    == program.strategy.global_step.numpy()
    == marked.NUM_STEPS
  )
  assert program.repeated == 1  # at most


def test_what_could_be_done_in_advance_waits_for_its_step(program):
  to_do, attempt = program.begun()
  program.call(attempt, to_do, limits=[1, 1])
  assert program.steps.numpy() <= 2


def test_what_was_done_and_counted_is_not_done_again(program):
  to_do, attempt = program.begun()
  assert program.call(attempt, to_do) is not None
  assert program.call(attempt, to_do) is None
  assert (
    attempt.num_steps
    == program.strategy.global_step.numpy()
    == marked.NUM_STEPS
  )
  assert program.values == [marked.NUM_STEPS] * 2
  assert program.repeated == 0


def test_what_was_cut_short_again_is_counted_once(program):
  to_do, attempt = program.begun()
  program.call(attempt, to_do, limits=[3, 3])
  # As if nobody had learnt what the second call returned.
  assert program.call(attempt, to_do) is None
  again = attempts.Countable(program.counts, to_do)
  again.id, again._task = attempt.id, attempt._task
  assert program.call(again, to_do) is None
  assert program.strategy.global_step.numpy() == 3


def test_single_steps_are_not_marked_and_told_when_repeated(program):
  to_do, attempt = program.begun(num_steps=1)
  assert attempt.args == ()
  program.call(attempt, to_do, limits=[0, 0])
  assert program.call(attempt, to_do) is not None
  assert program.repeated == 1


def test_who_only_counts_repeats_all_and_tells_how_much(program):
  to_do, _ = program.begun()
  attempt = attempts.Attempt(
    program.strategy.sync_session.step_log, marked.NUM_STEPS, is_logged=True
  )
  program.call(attempt, to_do, limits=[3, 3])
  assert program.call(attempt, to_do) is not None
  assert program.values == [3 + marked.NUM_STEPS] * 2
  assert program.repeated == 4  # at most


def test_rings_are_in_no_placement_report(program):
  report = program.strategy.placement_report()
  assert not [n for names in report.variables for n in names if 'marks' in n]
  keys = [
    entry.key for entry in program.strategy.guard.copies.inventory.entries()
  ]
  assert {'tfps/marks/0', 'tfps/marks/1'} <= set(keys)
