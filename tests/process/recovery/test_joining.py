"""Workers that come while others train."""

import pytest
import tensorflow as tf

from tests.support import losses
from tests.support import waiting
import tfps
from tfps import testing
from tfps.testing.chaos import progress


def of_worker(context):
  """An endless dataset whose elements tell which worker has it."""
  mine = tf.data.Dataset.from_tensors(context.input_pipeline_id)
  return mine.repeat()


@pytest.mark.exhaustive
def test_a_worker_joins_and_the_first_one_leaves(tmp_path):
  events = losses.Events()
  with testing.ProcessCluster(1, 1) as processes:
    strategy = tfps.ParameterServerStrategy(
      processes.cluster, recovery=tfps.Recovery(tmp_path, on_event=events)
    )
    with strategy.scope():
      count = tf.Variable(tf.zeros([2], tf.int64))

    def step(index):
      count.assign_add(tf.one_hot(index, 2, dtype=tf.int64))

    def join_and_leave():
      processes.add_worker()
      events.wait_for('joined', 'worker:1', after=[0])
      processes.terminate('worker', 0)
      assert processes.wait('worker', 0, timeout_secs=30) == 143

    with losses.trainer(strategy) as trainer:
      steps = losses.train_while(
        trainer, step, join_and_leave, dataset_fn=of_worker
      )
      first, _ = count.numpy()
      trainer.train(step, of_worker, steps=steps + 100)
      assert trainer.num_workers == 2
      assert count.numpy()[0] == first > 0
      assert sum(count.numpy()) == steps + 100
    assert processes.wait('worker', 1, timeout_secs=60) == 0


@pytest.mark.exhaustive
def test_a_worker_that_joined_is_found_by_the_next_chief(tmp_path):
  program = losses.campaign('fit', tmp_path, 1_000_000)
  with testing.ProcessCluster(
    1, 1, commands={'chief': program}, preload=['tensorflow', 'keras']
  ) as processes:
    processes.wait_for_line('chief', 0, 'at ', timeout_secs=60)
    processes.add_worker()
    waiting.until(lambda: num_joined(processes) == 1, timeout_secs=60)
    processes.restart('chief', 0)
    waiting.until(lambda: num_joined(processes) == 2, timeout_secs=60)
    processes.kill('worker', 0)
    later = last_step(processes) + 200
    waiting.until(lambda: last_step(processes) > later, timeout_secs=60)


def num_joined(processes):
  return processes.log('chief', 0).count('back or new: worker:1.')


def last_step(processes):
  step, _ = progress.numbers(processes.log('chief', 0), 'at')[-1]
  return step


@pytest.mark.exhaustive
def test_a_worker_joins_those_that_run_their_own_programs(tmp_path):
  program = losses.campaign('between_graph', tmp_path, 600)
  with testing.ProcessCluster(
    1, 1, commands={'worker': program}, preload=['tensorflow', 'keras']
  ) as processes:
    processes.wait_for_line('worker', 0, 'at ', timeout_secs=120)
    processes.add_worker()
    for index in range(2):
      assert processes.wait('worker', index, timeout_secs=120) == 0
    least, most, step = losses.counted(processes.log('worker', 0))
    assert least == most == step >= 600
