"""Sharded input: distributes files or ranges of numbers among workers.

```
with strategy.scope():
  queue = tfps.input.SplitQueue(tfps.input.Files('/data/train-*'), epochs=3)

def dataset(context):
  return queue.dataset(context).map(parse).shuffle(10_000).batch(64)

coordinator.train(step, dataset)
```
"""

from tfps.input.parquet import Parquet as Parquet
from tfps.input.queue import SplitQueue as SplitQueue
from tfps.input.splits import Files as Files
from tfps.input.splits import Ranges as Ranges
from tfps.input.splits import shard as shard

__all__ = ['Files', 'Parquet', 'Ranges', 'SplitQueue', 'shard']
