"""Files of checkpoints as training leaves them in a directory.

A checkpoint is one of TensorFlow, such as ckpt-7.index and its data, or a file
of Keras that ends with .weights.h5 or .keras.
"""

from collections.abc import Iterator
import contextlib
import dataclasses
import os
import pathlib
import re
import shutil

_INDEX = '.index'
_KERAS = ('.weights.h5', '.keras')


@dataclasses.dataclass(frozen=True)
class CheckpointFile:
  """Checkpoint in a directory.

  Attributes:
    path: of the file of Keras, or the prefix of those of TensorFlow.
    modified: time at which it was written, in seconds since the epoch. A file
      that is written again is another checkpoint.
  """

  path: pathlib.Path
  modified: float

  @property
  def key(self) -> tuple[str, float]:
    """Identifies the checkpoint, also after a restart."""
    return self.path.name, self.modified

  @property
  def is_keras(self) -> bool:
    """True if it is a Keras model's file rather than a checkpoint."""
    return self.path.name.endswith(_KERAS)

  @property
  def number(self) -> int | None:
    """The number in its name; None if it has none."""
    found = re.findall(r'\d+', self.path.name.removesuffix('.weights.h5'))
    if not found:
      return None
    # The name of Keras may have a loss behind the epoch.
    return int(found[0] if self.is_keras else found[-1])

  def modified_now(self) -> float | None:
    """Returns when it was last written, by now; None if it was deleted."""
    try:
      return self.files()[0].stat().st_mtime
    except OSError:
      return None

  def files(self) -> list[pathlib.Path]:
    """Returns its files, first the one whose time is that of all."""
    if self.is_keras:
      return [self.path]
    start = f'{self.path.name}.data-'
    data = (p for p in self.path.parent.iterdir() if p.name.startswith(start))
    return [_index_of(self.path), *data]


def find(directory: pathlib.Path) -> list[CheckpointFile]:
  """Returns the checkpoints in a directory, oldest first.

  Args:
    directory: none if it does not exist.
  """
  found = []
  try:
    paths = list(directory.iterdir())
  except FileNotFoundError:
    return []
  for path in paths:
    name = path.name
    if not name.endswith((_INDEX, *_KERAS)) or name.startswith('.'):
      continue
    with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
      modified = path.stat().st_mtime
      prefix = path.with_name(name.removesuffix(_INDEX))
      found.append(CheckpointFile(prefix, modified))
  return sorted(found, key=lambda c: (c.modified, c.number or 0, c.path))


@contextlib.contextmanager
def held(
  checkpoint: CheckpointFile, folder: pathlib.Path
) -> Iterator[CheckpointFile]:
  """Holds a checkpoint, which its manager may then delete or write again.

  Args:
    checkpoint: the checkpoint to hold.
    folder: for the time of the context; its earlier content is deleted.

  Yields:
    The checkpoint in the folder.

  Raises:
    OSError: it has vanished, is written again, or cannot be copied.
  """
  shutil.rmtree(folder, ignore_errors=True)
  folder.mkdir(parents=True)
  try:
    for path in checkpoint.files():
      _take(path, folder / path.name, may_link=not checkpoint.is_keras)
    if checkpoint.modified_now() not in (None, checkpoint.modified):
      raise OSError(f'{checkpoint.path} is being written again')
    yield dataclasses.replace(checkpoint, path=folder / checkpoint.path.name)
  finally:
    shutil.rmtree(folder, ignore_errors=True)


def move(checkpoint: CheckpointFile, folder: pathlib.Path) -> None:
  """Moves a checkpoint to a folder of the same file system."""
  # The index comes last: it is by this that others find the checkpoint.
  for path in reversed(checkpoint.files()):
    path.replace(folder / path.name)


def _take(
  source: pathlib.Path, target: pathlib.Path, *, may_link: bool
) -> None:
  """Links or copies a file; TensorFlow never writes to one that it has made."""
  if may_link:
    with contextlib.suppress(OSError):  # another file system, or no links there
      os.link(source, target)
      return
  shutil.copyfile(source, target)


def _index_of(prefix: pathlib.Path) -> pathlib.Path:
  return prefix.with_name(prefix.name + _INDEX)
