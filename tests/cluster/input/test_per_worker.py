import pytest
import tensorflow as tf

from tests.support import waiting
from tfps.input import per_worker


def _number(context):
  index = tf.constant(context.input_pipeline_id)
  return tf.data.Dataset.from_tensors(index).repeat()


@pytest.mark.tfps_cluster(workers=2, ps=2)
def test_workers_of_a_stock_coordinator_know_who_they_are(tfps_cluster):
  resolver = tfps_cluster.cluster.resolver()
  strategy = tf.distribute.ParameterServerStrategy(resolver)
  coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
  iterators, _ = per_worker.batches(coordinator, _number)
  step = tf.function(lambda iterator: next(iterator))
  seen = set()

  def have_all_answered():
    values = [coordinator.schedule(step, args=(iterators,)) for _ in range(4)]
    seen.update(int(value) for value in coordinator.fetch(values))
    return seen == {0, 1}

  waiting.until(have_all_answered)
