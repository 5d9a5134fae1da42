"""Input that is larger than any machine: shared out by files or ranges.

```
with strategy.scope():
  queue = tfps.input.SplitQueue(tfps.input.Files('/data/train-*'), epochs=3)

def dataset(context):
  return queue.dataset(context).map(parse).shuffle(10_000).batch(64)

coordinator.train(step, dataset)
```
"""

from tfps.input.queue import SplitQueue as SplitQueue
from tfps.input.sharding import shard as shard
from tfps.input.splits import Files as Files
from tfps.input.splits import Ranges as Ranges

__all__ = ['Files', 'Ranges', 'SplitQueue', 'shard']
