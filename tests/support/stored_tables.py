"""Models with a table of which most rows are in files."""

import keras
import numpy as np

import tfps
from tfps.updates.tables import storage as storage_lib

NUM_KEYS = 2400
WIDTH = 4
_RANDOM = np.random.default_rng(0)
_IDS = _RANDOM.integers(-(2**63), 2**63 - 1, NUM_KEYS)
# Each key once, and then some of them much more often than others.
KEYS = np.r_[_IDS, _IDS[np.minimum(_RANDOM.zipf(1.3, 1600), NUM_KEYS) - 1]]
_Y = (np.arange(len(KEYS)) % 5).astype('f')[:, None]


def storage(directory, num_slots):
  """Returns settings with which a quarter of all rows are in memory."""
  row_bytes = 4 * WIDTH * (1 + num_slots)
  return tfps.embeddings.Storage(
    memory_bytes=NUM_KEYS * row_bytes // 4, directory=str(directory)
  )


def model(optimizer, *, num_shards=2, **policies):
  """Returns a model whose layer `keyed` has a table."""
  inputs = keras.Input((), dtype='int64')
  layer = tfps.embeddings.Embedding(
    WIDTH, num_shards=num_shards, name='keyed', **policies
  )
  outputs = keras.layers.Dense(1, kernel_initializer='ones')(layer(inputs))
  made = keras.Model(inputs, outputs)
  made.compile(optimizer, 'mse', steps_per_execution=4)
  return made


def fit(model):
  """Trains a model for an epoch; returns what it predicts then."""
  model.fit(KEYS, _Y, batch_size=400, shuffle=False, verbose=0)
  return model.predict(KEYS, batch_size=1000, verbose=0)


def counts(table):
  """Returns the counts of the stores, for each shard."""
  return [storage_lib.counts(shard.rows) for shard in table.shards]
