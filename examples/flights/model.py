"""A wide & deep model: a linear part remembers, a network generalises."""

from collections.abc import Mapping

import keras
from keras import layers
import numpy as np

_ONE_HOT_UP_TO = 30  # A category with more ids gets an embedding.
_DIMENSIONS = 4
# Aeroplanes and flights come by name some hundred times a year each: without
# these, the model learns by heart which of them were late.
_DROP_EMBEDDED = 0.5
_DROP_WIDE = 0.3


def build(
  sizes: Mapping[str, int], num_numbers: int, *, steps_per_execution: int = 1
) -> keras.Model:
  """The model, from a batch of ids and numbers to logits of being late.

  Args:
    sizes: how many ids each category has, in the order of the columns.
    num_numbers: how many numbers an example has.
    steps_per_execution: steps that a worker does in one call.
  """
  ids = keras.Input((len(sizes),), dtype='int32', name='ids')
  numbers = keras.Input((num_numbers,), name='numbers')
  logits = keras.ops.add(_wide(ids, sizes), _deep(ids, numbers, sizes))
  model = keras.Model(
    {'ids': ids, 'numbers': numbers}, logits, name='wide_and_deep'
  )
  model.compile(
    keras.optimizers.Adam(3e-3),
    keras.losses.BinaryCrossentropy(from_logits=True),
    metrics=[keras.metrics.AUC(from_logits=True, name='auc')],
    steps_per_execution=steps_per_execution,
    jit_compile=False,
  )
  return model


def _wide(
  ids: keras.KerasTensor, sizes: Mapping[str, int]
) -> keras.KerasTensor:
  """A weight for each id; all categories share one table."""
  ends = np.cumsum(list(sizes.values()), dtype=np.int32)
  rows = ids + np.concatenate([[0], ends[:-1]]).astype(np.int32)
  table = layers.Embedding(
    int(ends[-1]), 1, embeddings_initializer='zeros', name='wide'
  )
  weights = layers.Dropout(_DROP_WIDE)(table(rows))
  return keras.ops.sum(weights, axis=1)


def _deep(
  ids: keras.KerasTensor,
  numbers: keras.KerasTensor,
  sizes: Mapping[str, int],
) -> keras.KerasTensor:
  """A network over numbers, small categories and embeddings of large ones."""
  columns, embedded = [numbers], []
  for i, (name, size) in enumerate(sizes.items()):
    if size <= _ONE_HOT_UP_TO:
      columns.append(keras.ops.one_hot(ids[:, i], size))
    else:
      table = layers.Embedding(size, _DIMENSIONS, name=name)
      embedded.append(table(ids[:, i]))
  embedded = layers.Concatenate()(embedded)
  columns.append(layers.Dropout(_DROP_EMBEDDED)(embedded))
  hidden = layers.Concatenate()(columns)
  for units in (128, 64):
    hidden = layers.Dense(units, activation='relu')(hidden)
  return layers.Dense(1)(hidden)
