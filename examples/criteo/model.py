"""A DLRM whose categories need no vocabulary.

It is the model of Naumov et al., "Deep Learning Recommendation Model for
Personalization and Recommendation Systems" (2019): a network of the numbers, an
embedding for each category, the products of each two of these vectors, and a
network of the products.
"""

from collections.abc import Sequence

import keras
import numpy as np
import rows

import tfps

_ID_BITS = 32


class Growing:
  """Vectors that come and go with their ids.

  Args:
    width: elements of a vector.
    min_count: how often an id is seen before it gets a vector.
    capacity: how many ids have a vector at most.
    separate: whether each category has a table of its own, with an equal part
      of the capacity. Otherwise they share one, and have vectors of their own.

  Attributes:
    width: elements of a vector.
  """

  def __init__(
    self, width: int, *, min_count: int, capacity: int, separate: bool = False
  ) -> None:
    self.width = width
    number = rows.NUM_CATEGORIES if separate else 1
    self._layers = [
      tfps.embeddings.Embedding(
        width,
        _initializer(),
        num_features=None if separate else rows.NUM_CATEGORIES,
        admission=tfps.embeddings.Counter(min_count),
        eviction=tfps.embeddings.Lru(capacity // number),
      )
      for _ in range(number)
    ]

  def __call__(self, ids: keras.KerasTensor) -> keras.KerasTensor:
    """Returns vectors of shape [batch, 26, width] of ids."""
    if len(self._layers) == 1:
      return self._layers[0](ids)
    columns = [layer(ids[:, i]) for i, layer in enumerate(self._layers)]
    return keras.ops.stack(columns, axis=1)

  def counts(self) -> dict[str, int]:
    """Returns how many ids got a vector, lost it, and have one.

    An id that is evicted and comes back counts twice.
    """
    held = sum(layer.table.num_keys() for layer in self._layers)
    evicted = sum(layer.table.num_evicted() for layer in self._layers)
    return {'admitted': held + evicted, 'evicted': evicted, 'rows': held}


class Static:
  """Vectors of a table of a fixed size, which ids share by hashing.

  Args:
    width: elements of a vector.
    size: rows of the table.

  Attributes:
    width: elements of a vector.
  """

  def __init__(self, width: int, size: int) -> None:
    self.width = width
    self._hashing = keras.layers.Hashing(size)
    self._embedding = keras.layers.Embedding(size, width, _initializer())

  def __call__(self, ids: keras.KerasTensor) -> keras.KerasTensor:
    """Returns vectors of shape [batch, 26, width] of ids."""
    # Ids of the same value differ between categories.
    categories = np.arange(rows.NUM_CATEGORIES, dtype='int64') << _ID_BITS
    hashes = self._hashing(keras.ops.add(ids, categories))
    vectors: keras.KerasTensor = self._embedding(hashes)
    return vectors

  def counts(self) -> dict[str, int]:
    """Returns how many rows the table has."""
    return {'rows': self._embedding.input_dim}


def dlrm(
  vectors: Growing | Static, bottom: Sequence[int], top: Sequence[int]
) -> keras.Model:
  """Returns a model of the probability of a click.

  Args:
    vectors: makes vectors of ids.
    bottom: units of the layers that numbers go through, but the last one.
    top: units of the layers that products go through, but the last one.
  """
  numbers = keras.Input((rows.NUM_NUMBERS,), name='numbers')
  ids = keras.Input((rows.NUM_CATEGORIES,), dtype='int64', name='ids')
  logs = keras.ops.log1p(keras.ops.relu(numbers))
  dense = _perceptron(logs, [*bottom, vectors.width])
  both = keras.ops.concatenate([dense[:, None], vectors(ids)], axis=1)
  products = _products(both, rows.NUM_CATEGORIES + 1)
  hidden = _perceptron(keras.ops.concatenate([dense, products], axis=1), top)
  click = keras.layers.Dense(1, 'sigmoid', name='click')(hidden)
  return keras.Model({'numbers': numbers, 'ids': ids}, click, name='dlrm')


def _products(vectors: keras.KerasTensor, number: int) -> keras.KerasTensor:
  """Returns the dot products of each two of a number of vectors."""
  products = keras.ops.matmul(vectors, keras.ops.transpose(vectors, (0, 2, 1)))
  flat = keras.ops.reshape(products, (-1, number**2))
  pairs = np.ravel_multi_index(np.triu_indices(number, 1), (number, number))
  return keras.ops.take(flat, pairs.astype('int32'), axis=1)


def _initializer() -> keras.initializers.Initializer:
  return keras.initializers.RandomNormal(stddev=0.03, seed=1)


def _perceptron(
  values: keras.KerasTensor, units: Sequence[int]
) -> keras.KerasTensor:
  for number in units:
    values = keras.layers.Dense(number, 'relu')(values)
  return values
