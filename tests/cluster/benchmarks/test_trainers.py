"""All ways to train that benchmarks compare do the steps that they are told."""

import numpy as np
import pytest
import tensorflow as tf

from benchmarks import perceptron
from benchmarks import trainers
from tests.support import turns
import tfps

pytestmark = pytest.mark.tfps_cluster(workers=1, ps=1)

_NUM_STEPS = 2 * trainers.STEPS_PER_EXECUTION


class _Slope:
  """A model whose only variable goes down by the rate with each step."""

  def variables(self):
    self.made = [tf.Variable(0.0)]
    return self.made

  def gradients(self, variables, batch):
    del variables
    return [batch]

  def dataset(self, context):
    del context
    return tf.data.Dataset.from_tensors(1.0).repeat()


def _ours(cluster, model, **options):
  return trainers.Ours(cluster, model, **options).training()


def _with_recovery(cluster, model, folder):
  return _ours(cluster, model, recovery=tfps.Recovery(folder))


_TRAINERS = {
  'stock': lambda *of, folder: trainers.stock(*of, unrolled=False),
  'stock, unrolled': lambda *of, folder: trainers.stock(*of, unrolled=True),
  'ours': lambda *of, folder: _ours(*of),
  'one at a time': lambda *of, folder: _ours(*of, steps_per_execution=1),
  'prefetch': lambda *of, folder: _ours(*of, wire=tfps.Wire(prefetch=1)),
  'recovery': lambda *of, folder: _with_recovery(*of, folder),
  'between graphs': lambda *of, folder: trainers.between_graphs(
    *of, tfps.Wire()
  ),
  'hybrid': lambda *of, folder: trainers.hybrid(*of, 'ps')[0],
  'single process': lambda cluster, model, folder: trainers.alone(model),
}


# Those of ours that have an option are like the one that has none.
@pytest.mark.parametrize(
  'how',
  turns.rarely(
    list(_TRAINERS),
    but=['ours'],
  ),
)
def test_as_many_steps_are_done_as_were_asked_for(how, tfps_cluster, tmp_path):
  model = _Slope()
  run = _TRAINERS[how](tfps_cluster.cluster, model, folder=tmp_path)
  run(_NUM_STEPS)
  run(_NUM_STEPS)
  (slope,) = model.made
  expected = -2 * _NUM_STEPS * perceptron.RATE
  np.testing.assert_allclose(slope.numpy(), expected, rtol=1e-5)
