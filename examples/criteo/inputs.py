"""Rows of Parquet files as the model takes them."""

from collections.abc import Callable
import dataclasses
import pathlib

import numpy as np
from pyarrow import parquet
import rows
import tensorflow as tf

import tfps

_FILL = {'numbers': 0, 'ids': rows.MISSING_ID}  # for what is missing
_WIDTHS = {'numbers': rows.NUM_NUMBERS, 'ids': rows.NUM_CATEGORIES}


def training(
  folder: pathlib.Path, batch_size: int
) -> Callable[[tf.distribute.InputContext], tf.data.Dataset]:
  """Returns a function that makes a worker's dataset, in a strategy's scope.

  Workers share out the rows, in the order of time: each row is in one batch.

  Args:
    folder: that `data.py` has written to.
    batch_size: rows of a batch.
  """
  groups = tfps.input.Parquet(
    folder / 'train.parquet',
    label='clicked',
    batch_size=batch_size,
    fill=_FILL,
  )
  queue = tfps.input.SplitQueue(groups)

  def dataset(context: tf.distribute.InputContext) -> tf.data.Dataset:
    return queue.dataset(context).map(_dense)

  return dataset


@dataclasses.dataclass(frozen=True)
class HeldOut:
  """Rows that nothing is learnt from.

  Attributes:
    inputs: the model's inputs by name, of shape [rows, ...].
    clicked: 1 or 0, of shape [rows].
  """

  inputs: dict[str, np.ndarray]
  clicked: np.ndarray

  @classmethod
  def read(cls, folder: pathlib.Path) -> 'HeldOut':
    """Reads what `data.py` has written to a folder."""
    table = parquet.read_table(folder / 'test.parquet')
    inputs = {}
    for name, width in _WIDTHS.items():
      flat = table[name].combine_chunks().flatten().fill_null(_FILL[name])
      inputs[name] = flat.to_numpy().reshape(-1, width)
    return cls(inputs, table['clicked'].to_numpy())

  def auc(self, clicks: np.ndarray) -> float:
    """Returns the area under the ROC curve of probabilities of a click."""
    metric = tfps.keras.metrics.ExactAUC(max_examples=len(self.clicked))
    metric.update_state(self.clicked, clicks)
    return float(metric.result())


def count_ids(folder: pathlib.Path) -> int:
  """Returns how many ids of all categories are in the rows for training."""
  seen: list[np.ndarray] = [np.zeros(0, np.int64)] * rows.NUM_CATEGORIES
  file = parquet.ParquetFile(folder / 'train.parquet')
  for batch in file.iter_batches(1 << 20, columns=['ids']):
    flat = batch['ids'].flatten().fill_null(rows.MISSING_ID).to_numpy()
    for i, column in enumerate(flat.reshape(-1, rows.NUM_CATEGORIES).T):
      seen[i] = np.union1d(seen[i], column)
  return sum(map(len, seen))


def _dense(
  features: dict[str, tf.RaggedTensor], clicked: tf.Tensor
) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
  inputs = {
    name: tf.reshape(features[name].flat_values, [-1, width])
    for name, width in _WIDTHS.items()
  }
  return inputs, clicked[:, tf.newaxis]
