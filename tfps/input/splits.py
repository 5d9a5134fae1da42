"""Splits of the data: files, or ranges of numbers."""

import collections
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
import hashlib
import itertools
import os
import re
from typing import Any
from typing import Protocol

import tensorflow as tf

from tfps import errors

_WILD = frozenset('*?[')
_NUM_FOLDERS = 2
_PART = re.compile(r'\d|.*=')  # the name of a folder, such as 2026 or day=2

Reader = Callable[[tf.Tensor], tf.data.Dataset]


class Splits(Protocol):
  """Parts of the data, each of which is read from its beginning to its end."""

  def __len__(self) -> int: ...

  def read(self, split: tf.Tensor) -> tf.data.Dataset:
    """Returns the elements of a split, given its index as a scalar int64."""

  def name(self, split: int) -> str:
    """Returns the name of a split, given its index, for errors."""

  def is_named(self, split: int, text: str) -> bool:
    """Returns whether an error with such a text is about reading a split."""

  def fingerprint(self, *, with_batches: bool = False) -> int:
    """Returns a 64-bit hash that identifies the splits and their order.

    Args:
      with_batches: whether it is another one for other batches of the same
        splits, as far as `read` makes them.
    """


class Files:
  """Splits that are files, each file one split.

  Args:
    files: a path or a glob pattern, or several. Patterns are expanded by this
      process at once, each in alphabetical order; paths need not exist here.
    reader: gets the path of a file as a scalar string tensor, and returns the
      dataset of its elements.

  Raises:
    TypeError: `files` has something else than paths.
    ValueError: a pattern matches no file, or a file is listed twice.
  """

  def __init__(
    self,
    files: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    reader: Reader = tf.data.TFRecordDataset,
  ) -> None:
    self.paths = expand(files)
    self._reader = reader

  def __len__(self) -> int:
    return len(self.paths)

  def read(self, split: tf.Tensor) -> tf.data.Dataset:
    """Returns the elements of a file. See `Splits`."""
    return self._reader(tf.gather(tf.constant(self.paths), split))

  def name(self, split: int) -> str:
    """Returns the path of a file. See `Splits`."""
    return self.paths[split]

  def is_named(self, split: int, text: str) -> bool:
    """Returns whether a text has the path of a file. See `Splits`."""
    return self.paths[split] in text

  def fingerprint(self, *, with_batches: bool = False) -> int:
    """Returns a 64-bit hash of the files' places. See `Splits`."""
    del with_batches  # a reader's batches are unknown
    return hash_of(*places(self.paths))


class Ranges:
  """Splits of the numbers from 0 to `total - 1`, as ranges of equal size.

  The numbers, scalar int64, may be rows of a table, or keys of a database:
  `map` them. The last range may be shorter.

  Args:
    total: how many numbers there are.
    size: how many numbers a split has.

  Raises:
    ValueError: `total` or `size` is not a positive integer.
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
    """Returns the numbers of a range. See `Splits`."""
    first = split * self._size
    last = tf.minimum(first + self._size, self._total)
    return tf.data.Dataset.range(first, last)

  def name(self, split: int) -> str:
    """Returns a range as text. See `Splits`."""
    last = min((split + 1) * self._size, self._total)
    return f'[{split * self._size}, {last})'

  def is_named(self, split: int, text: str) -> bool:
    """Returns False: steps' errors have ranges, of indices. See `Splits`."""
    return False

  def fingerprint(self, *, with_batches: bool = False) -> int:
    """Returns a 64-bit hash of the ranges. See `Splits`."""
    del with_batches  # elements are single numbers
    return hash_of(str(self._total), str(self._size))


def shard(
  files: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
  context: tf.distribute.InputContext,
) -> list[str]:
  """Returns one worker's fixed share of the files; each file has one worker.

  A worker reads its own files only, while `Dataset.shard` reads and discards
  the elements of other workers. The share of a lost worker is not read by
  others, nor do workers balance their load; for that, use a `SplitQueue`.

  Args:
    files: a path or a glob pattern, or several; as for `Files`.
    context: the worker's, as a `dataset_fn` gets it.

  Returns:
    The paths, every `num_input_pipelines`-th from `input_pipeline_id` on.

  Raises:
    TypeError: `files` has something else than paths.
    ValueError: there are fewer files than workers, a pattern matches no file,
      or a file is listed twice.
  """
  paths = expand(files)
  num_workers = context.num_input_pipelines
  if len(paths) < num_workers:
    raise ValueError(
      f'files: {len(paths)} cannot be shared out to {num_workers} workers: '
      'some would have none. Write the data to more files, or use a '
      'tfps.input.SplitQueue of tfps.input.Ranges, which takes any number.'
    )
  return paths[context.input_pipeline_id :: num_workers]


def expand(files: Any, *, name: str = 'files') -> list[str]:
  """Returns the paths that match patterns.

  Args:
    files: a path or a glob pattern, or several.
    name: the argument's name, for errors.

  Raises:
    TypeError: there is something else than paths.
    ValueError: a pattern matches no file, or a file is listed twice.
  """
  kinds = str | os.PathLike
  is_one = isinstance(files, kinds) or not isinstance(files, Iterable)
  listed = [files] if is_one else list(files)
  if not all(isinstance(each, kinds) for each in listed):
    raise TypeError(
      f'{name}={files!r}: give a path or a glob pattern, or several.'
    )
  paths = [path for each in listed for path in _matching(os.fspath(each), name)]
  if not paths:
    raise ValueError(f'{name}={files!r}: give one file or more.')
  check_distinct(paths, name)
  return paths


def check_distinct(paths: Sequence[str], name: str) -> None:
  """Checks that no path is there twice.

  Args:
    paths: the paths.
    name: the argument's name, for errors.

  Raises:
    ValueError: one is.
  """
  counted = collections.Counter(paths)
  twice = [path for path, number in counted.items() if number > 1]
  if twice:
    raise ValueError(
      f'{name}: {", ".join(twice)} is listed more than once, and would '
      'be read as often.'
    )


def _matching(pattern: str, name: str) -> list[str]:
  if not _WILD & set(pattern):
    return [pattern]
  try:
    paths = sorted(tf.io.gfile.glob(pattern))
  except tf.errors.OpError as error:
    raise ValueError(
      f'{name}: {pattern!r} cannot be looked up: {errors.first_line(error)}. '
      'Correct it, or list the files.'
    ) from error
  if not paths:
    raise ValueError(
      f'{name}: nothing matches {pattern!r}. Patterns are looked up by the '
      'program; for Files and shard, where its host does not have the files, '
      'list them.'
    )
  return paths


def places(paths: Sequence[str]) -> list[str]:
  """Returns paths without what depends on where their data is mounted.

  Another host may mount the data elsewhere, and files of another day often have
  the same names. So the last two folders that all paths share are kept, and
  those from the first on that begins with a digit or has the form `day=2`.

  Args:
    paths: the paths.
  """
  parts = [os.path.normpath(path).split('/') for path in paths]
  folders = [part[:-1] for part in parts]
  levels = [set(names) for names in zip(*folders, strict=False)]
  shared = list(itertools.takewhile(lambda names: len(names) == 1, levels))
  kept = [i for i, (name,) in enumerate(shared) if _PART.match(name)]
  first = min([*kept, max(0, len(shared) - _NUM_FOLDERS)])
  return ['/'.join(part[first:]) for part in parts]


def hash_of(*parts: str) -> int:
  """Returns a 64-bit hash of texts and their order."""
  text = '\n'.join(parts).encode()
  digest = hashlib.sha256(text).digest()
  return int.from_bytes(digest[:8], 'little', signed=True)
