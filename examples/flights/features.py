"""Flights as numbers that a model can read: ids of categories, and scales."""

from collections.abc import Mapping
import dataclasses

import data
import numpy as np
import pandas as pd
import tensorflow as tf

CATEGORIES = (
  'carrier',
  'origin',
  'dest',
  'tailnum',
  'flight',
  'month',
  'weekday',
  'hour',
)
NUMBERS = ('minute', 'distance', 'age', 'seats', *data.WEATHER)
OUT_OF_VOCABULARY = 0
_MIN_COUNT = 5


@dataclasses.dataclass(frozen=True)
class Examples:
  """Rows of features with their labels.

  Attributes:
    ids: a category's id in each column, int32 [rows, categories].
    numbers: scaled, float32 [rows, numbers].
    late: 1 or 0, float32 [rows, 1].
  """

  ids: np.ndarray
  numbers: np.ndarray
  late: np.ndarray

  def __len__(self) -> int:
    return len(self.late)

  def inputs(self) -> dict[str, np.ndarray]:
    """The features by the names of the model's inputs."""
    return {'ids': self.ids, 'numbers': self.numbers}

  def share(self, context: tf.distribute.InputContext) -> 'Examples':
    """The rows of one worker; those of all workers are all rows."""
    rows = slice(context.input_pipeline_id, None, context.num_input_pipelines)
    return Examples(self.ids[rows], self.numbers[rows], self.late[rows])

  def batches(self, batch_size: int = 4096) -> tf.data.Dataset:
    """All rows once, in order."""
    rows = (self.inputs(), self.late)
    return tf.data.Dataset.from_tensor_slices(rows).batch(batch_size)

  def dataset(
    self,
    context: tf.distribute.InputContext,
    *,
    batch_size: int,
    seed: int,
  ) -> tf.data.Dataset:
    """One worker's endless batches, in a new order each time round."""
    # Rows are dealt out before TensorFlow sees them: the arrays become
    # constants of the dataset, which travels to its worker. Only their numbers
    # are shuffled, and the rows of a batch taken at once.
    mine = self.share(context)
    rows = (mine.inputs(), mine.late)
    return (
      tf.data.Dataset.range(len(mine))
      .shuffle(len(mine), seed=seed + context.input_pipeline_id)
      .repeat()
      .batch(batch_size, drop_remainder=True)
      .map(lambda i: tf.nest.map_structure(lambda x: tf.gather(x, i), rows))
      .prefetch(4)
    )


class Encoder:
  """Turns flights into examples, knowing only the training part.

  Args:
    training: the flights to learn vocabularies and scales from.
  """

  def __init__(self, training: pd.DataFrame) -> None:
    self._vocabularies = {
      name: _vocabulary(training[name]) for name in CATEGORIES
    }
    numbers = training[list(NUMBERS)]
    self._medians = numbers.median()
    filled = numbers.fillna(self._medians)
    self._means, self._scales = filled.mean(), filled.std()
    self._unsure = numbers.columns[numbers.isna().any()]

  @property
  def sizes(self) -> dict[str, int]:
    """How many ids each category has, the one for unknown values included."""
    return {name: len(v) + 1 for name, v in self._vocabularies.items()}

  @property
  def num_numbers(self) -> int:
    """How many numbers an example has."""
    return len(NUMBERS) + len(self._unsure)

  def vocabulary(self, name: str) -> pd.Index:
    """The values of a category that have ids of their own: 1, 2, ..."""
    return self._vocabularies[name]

  def encode(self, flights: pd.DataFrame) -> Examples:
    """The examples of some flights, whether seen in training or not."""
    return Examples(
      self._ids(flights),
      self._numbers(flights),
      flights[['late']].to_numpy(np.float32),
    )

  def _ids(self, flights: pd.DataFrame) -> np.ndarray:
    # get_indexer gives -1 for what it does not know.
    columns = [v.get_indexer(flights[n]) for n, v in self._items()]
    return np.stack(columns, axis=1).astype(np.int32) + 1 + OUT_OF_VOCABULARY

  def _items(self) -> list[tuple[str, pd.Index]]:
    return [(name, self._vocabularies[name]) for name in CATEGORIES]

  def _numbers(self, flights: pd.DataFrame) -> np.ndarray:
    numbers = flights[list(NUMBERS)]
    scaled = (numbers.fillna(self._medians) - self._means) / self._scales
    missing = numbers[self._unsure].isna()
    return np.concatenate([scaled, missing], axis=1).astype(np.float32)


@dataclasses.dataclass(frozen=True)
class Split:
  """The flights, encoded.

  Attributes:
    training: what models learn from.
    validation: what says when to stop.
    held_out: what they are judged by.
    sizes: how many ids each category has.
  """

  training: Examples
  validation: Examples
  held_out: Examples
  sizes: Mapping[str, int]


def split(flights: pd.DataFrame) -> Split:
  """Encodes the parts of the flights, knowing only the training part."""
  parts = data.parts(flights)
  encoder = Encoder(flights[parts.training])
  return Split(
    encoder.encode(flights[parts.training]),
    encoder.encode(flights[parts.validation]),
    encoder.encode(flights[parts.held_out]),
    encoder.sizes,
  )


def _vocabulary(values: pd.Series) -> pd.Index:
  """The values that are seen often enough to learn something about."""
  counts = values.value_counts()
  return pd.Index(sorted(counts.index[counts >= _MIN_COUNT]))
