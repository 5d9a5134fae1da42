"""What tasks send each other in a step: each message takes CPU time of both."""

import collections

import keras
import pytest
import tensorflow as tf

from tests.support import messages
import tfps

pytestmark = pytest.mark.tfps_cluster(workers=1, ps=2)

_PS = ['ps:0', 'ps:1']


@pytest.fixture
def of_a_step(tfps_cluster, tmp_path):
  """How many messages of each sender and receiver the function has."""
  return lambda **kwargs: _of_a_step(tfps_cluster.cluster, tmp_path, **kwargs)


def _of_a_step(
  cluster,
  directory,
  *,
  first=None,
  steps_per_execution=1,
  decorate=lambda step: step,
  **kwargs,
):
  strategy = tfps.BetweenGraphStrategy(cluster, **kwargs)
  with strategy.scope():
    first = first() if first else keras.layers.Dense(4)
    model = keras.Sequential([first, keras.layers.Dense(1)])
    model.build([None, 3])
    optimizer = keras.optimizers.Adagrad(0.1)
    optimizer.build(model.trainable_variables)
  places = {v.value.device for v in model.trainable_variables}
  assert len(places) == len(_PS)

  def step(batch):
    with tf.GradientTape() as tape:
      loss = tf.reduce_mean(model(batch) ** 2)
    variables = model.trainable_variables
    optimizer.apply(tape.gradient(loss, variables), variables)

  with messages.counted(directory) as found:
    strategy.train(
      decorate(step),
      lambda context: tf.data.Dataset.from_tensors(tf.ones([2, 3])).repeat(),
      steps=2 * steps_per_execution,
      steps_per_execution=steps_per_execution,
    )
  largest = max(found, key=len)
  return collections.Counter(largest)


def test_a_step_pulls_pushes_and_waits_for_each_ps(of_a_step):
  sent = of_a_step()
  (worker,) = {task for pair in sent for task in pair} - set(_PS)
  # Values, and that the update was made.
  assert sent['ps:1', worker] == 2
  # Gradients.
  assert sent[worker, 'ps:1'] == 1
  # The number of steps, when to add it, and the global step after that.
  assert sent['ps:0', worker] == 2 + 1
  assert sent[worker, 'ps:0'] == 1 + 2
  assert sent.total() == 9


def test_a_loop_costs_two_more_for_each_ps(of_a_step):
  sent = of_a_step(steps_per_execution=4)
  assert sent.total() == 9 + 2 * len(_PS)


def test_a_table_costs_one_more_for_its_numbers(of_a_step):
  sent = of_a_step(
    first=lambda: keras.layers.Embedding(10, 4), steps_per_execution=4
  )
  # Before the loop, each ps waits until counts of bytes are set to zero.
  assert sent.total() == 9 + 2 * len(_PS) + 1 + len(_PS)


def test_ps_decide_about_workers_without_asking_them(of_a_step):
  sent = of_a_step(updates=tfps.updates.Sync())
  assert sent.total() <= 37


def test_a_function_of_tensorflow_costs_no_more(of_a_step):
  sent = of_a_step(decorate=tf.function)
  assert sent.total() == 9
