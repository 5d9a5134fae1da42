"""Looks rows up in many ways, alone in a network that counts bytes as well.

Prints, as JSON, the bytes of a step for each way, or 'denied' if this user may
not make a network. Each step trains a table of which it needs few rows.

The arguments are the name of a strategy, the number of shards, and the names of
lookups; by default all of them.
"""

import json
import sys

from tests.programs import count_bytes

_BATCH = 32
_STEPS = (8, 40)


def main(kind: str, shards: int, *names: str) -> None:
  if not count_bytes.enter_a_network():
    print('denied')
    return
  import keras
  import tensorflow as tf

  from tests.support import lookups
  import tfps

  def bytes_of(model, steps):
    ids = tf.data.Dataset.range(100, output_type=tf.int64)
    batches = (
      ids.repeat().map(lambda i: (i * 7 % lookups.ROWS, [0.0])).batch(_BATCH)
    )
    begun = count_bytes.bytes_on_loopback()
    model.fit(batches.take(steps), verbose=0)
    return count_bytes.bytes_on_loopback() - begun

  def measure(name, cluster):
    partitioner = tfps.partitioners.FixedShards(shards) if shards > 1 else None
    strategy = getattr(tfps, kind)(cluster, partitioner)
    with strategy.scope():
      model = keras.Sequential(
        [
          keras.layers.Input((), dtype='int64'),
          lookups.layer(name),
          keras.layers.Dense(1),
        ]
      )
      model.compile('sgd', 'mse', steps_per_execution=4)
    bytes_of(model, 4)
    few, many = (bytes_of(model, steps) for steps in _STEPS)
    return (many - few) // (_STEPS[1] - _STEPS[0])

  found = {}
  for name in names or lookups.NAMES:
    with tfps.testing.InProcessCluster(num_workers=1, num_ps=2) as cluster:
      found[name] = measure(name, cluster.cluster)
  print(json.dumps(found), flush=True)


if __name__ == '__main__':
  main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
