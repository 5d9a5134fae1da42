"""What a plan says that crosses is what the wire counts."""

import keras
import pytest
import tensorflow as tf

from tests.support import turns
import tfps
from tfps import codecs
from tfps import plan
from tfps.plan import messages

_LINKS = plan.Links(1000)
_WIDTH = 16


def _job(shapes=(), num_ps=1, *, tables=(), **kwargs):
  model = plan.Model.of_shapes(shapes or [[]], 0.0)
  for table in tables:
    model = model.with_table(*table)
  return plan.Job(model, 2, num_ps, _LINKS, **kwargs)


_WIRES = {
  'none': tfps.Wire(),
  'encoded': tfps.Wire(pull=codecs.Float16(), push=codecs.Int8(block=64)),
}


@pytest.mark.tfps_cluster(workers=1, ps=2)
@pytest.mark.parametrize('name', turns.rarely(list(_WIRES), but=['encoded']))
def test_bytes_are_those_that_the_wire_counts(tfps_cluster, name):
  wire = _WIRES[name]
  shapes = [[600, _WIDTH * 32], [40, 8], [2000], [8]]
  ids = tf.range(100, dtype=tf.int64) * 3
  strategy = tfps.ParameterServerStrategy(tfps_cluster.cluster, wire=wire)
  with strategy.scope():
    variables = [
      tf.Variable(tf.zeros(shape)) for shape in [[1000, _WIDTH], *shapes]
    ]
    optimizer = keras.optimizers.SGD(0.1)
    optimizer.build(variables)

  def step(batch):
    with tf.GradientTape() as tape:
      rows = tf.nn.embedding_lookup(variables[0], batch)
      loss = tf.reduce_sum(rows)
      loss += tf.add_n([tf.reduce_sum(v * v) for v in variables[1:]])
    gradients = tape.gradient(loss, variables)
    optimizer.apply_gradients(zip(gradients, variables, strict=True))

  def dataset(context):
    del context
    return tf.data.Dataset.from_tensors(ids).repeat()

  with tfps.Coordinator(strategy, timeout_secs=60) as coordinator:
    coordinator.train(step, dataset, steps=4, steps_per_execution=2)
  job = _job(
    shapes, 2, tables=[(1000, _WIDTH, 100)], pull=wire.pull, push=wire.push
  )
  found, report = messages.of(job), strategy.wire_report()
  for ps in range(2):
    counted = report.pulled[ps] / report.steps, report.pushed[ps] / report.steps
    told = found.pulled(ps), found.pushed(ps)
    # Learning rates and counters go along.
    assert told == pytest.approx(counted, rel=0.01, abs=100)
