"""What data is split into: files, or ranges of numbers."""

import collections
from collections.abc import Callable
from collections.abc import Iterable
import hashlib
import os
from typing import Any
from typing import Protocol

import tensorflow as tf

_WILD = frozenset('*?[')

Reader = Callable[[tf.Tensor], tf.data.Dataset]


class Splits(Protocol):
  """Parts of the data, each of which is read from its beginning to its end."""

  def __len__(self) -> int: ...

  def read(self, split: tf.Tensor) -> tf.data.Dataset:
    """What is in a split, given its number as a scalar int64."""

  def name(self, split: int) -> str:
    """What to call a split in an error."""

  def fingerprint(self) -> int:
    """Another number, most likely, for other splits."""


class Files:
  """Each file is a split.

  Args:
    files: a path or a pattern, or several. Patterns are looked up here and now,
      each in alphabetical order; paths are taken as they are.
    reader: gets the path of a file as a scalar string, and returns the dataset
      of what is in it.

  Raises:
    ValueError: a pattern matches no file, or a file is listed twice.
  """

  def __init__(
    self,
    files: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    reader: Reader = tf.data.TFRecordDataset,
  ) -> None:
    self.paths = found(files)
    self._reader = reader

  def __len__(self) -> int:
    return len(self.paths)

  def read(self, split: tf.Tensor) -> tf.data.Dataset:
    return self._reader(tf.gather(tf.constant(self.paths), split))

  def name(self, split: int) -> str:
    return self.paths[split]

  def fingerprint(self) -> int:
    # The folder may be mounted elsewhere on the next host.
    return _hash(*(os.path.basename(path) for path in self.paths))


class Ranges:
  """The numbers from 0 on, so many to a split; the last split may have fewer.

  They may be rows of a table, or keys of a database: `map` them.

  Args:
    total: how many numbers there are.
    size: how many make up a split.

  Raises:
    ValueError: there is nothing in it.
  """

  def __init__(self, total: int, size: int) -> None:
    for name, value in (('total', total), ('size', size)):
      if not isinstance(value, int) or value < 1:
        raise ValueError(f'Ranges: {name}={value!r} must be 1 or more.')
    self._total = total
    self._size = size

  def __len__(self) -> int:
    return -(-self._total // self._size)

  def read(self, split: tf.Tensor) -> tf.data.Dataset:
    first = split * self._size
    last = tf.minimum(first + self._size, self._total)
    return tf.data.Dataset.range(first, last)

  def name(self, split: int) -> str:
    last = min((split + 1) * self._size, self._total)
    return f'[{split * self._size}, {last})'

  def fingerprint(self) -> int:
    return _hash(str(self._total), str(self._size))


def found(files: Any) -> list[str]:
  """The paths that patterns stand for.

  Raises:
    ValueError: a pattern matches no file, or a file is listed twice.
  """
  listed = [files] if isinstance(files, str | os.PathLike) else list(files)
  paths = [path for each in listed for path in _matching(os.fspath(each))]
  if not paths:
    raise ValueError(f'files={files!r}: there is no file in it.')
  counted = collections.Counter(paths)
  twice = [path for path, number in counted.items() if number > 1]
  if twice:
    raise ValueError(
      f'files: {", ".join(twice)} is listed more than once, and would '
      'be read as often.'
    )
  return paths


def _matching(pattern: str) -> list[str]:
  if not _WILD & set(pattern):
    return [pattern]
  try:
    paths = sorted(tf.io.gfile.glob(pattern))
  except tf.errors.OpError as error:
    raise ValueError(f'files: {pattern!r} cannot be looked up: {error}') from (
      error
    )
  if not paths:
    raise ValueError(
      f'files: nothing matches {pattern!r}. Patterns are looked up by the '
      'program; where its host does not have the files, list them.'
    )
  return paths


def _hash(*parts: str) -> int:
  text = '\n'.join(parts).encode()
  digest = hashlib.sha256(text).digest()
  return int.from_bytes(digest[:8], 'little', signed=True)
