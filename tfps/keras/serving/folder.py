"""Folder of bases and deltas: names, order and complete writes.

A base is a SavedModel, with `MANIFEST` beside it. Deltas of base 1 are
`delta-00000001-00000001.npz`, `delta-00000001-00000002.npz` and so on. A base
or delta gets its name once it is complete and on disk.
"""

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import json
import os
import pathlib
import re
import shutil
from typing import Any
from typing import NamedTuple
import uuid

from tfps import errors

# Raised when the contents of a base or a delta change.
FORMAT = 1
MANIFEST = 'tfps_base.json'
_BASE = re.compile(r'base-(\d{8})')
_DELTA = re.compile(r'delta-(\d{8})-(\d{8})\.npz')
_DRAFT = 'draft-'


class Version(NamedTuple):
  """State of a model that is served.

  Attributes:
    base: number of the base.
    sequence: number of the last delta of it that was applied; 0 if none was.
  """

  base: int
  sequence: int


class Folder:
  """Bases and deltas in a directory.

  Args:
    directory: its path.

  Attributes:
    path: the same.
  """

  def __init__(self, directory: str | os.PathLike[str]) -> None:
    self.path = pathlib.Path(directory).absolute()
    self._own = uuid.uuid4().hex

  def prepare(self) -> None:
    """Makes the directory, and removes what a killed process has left.

    Raises:
      ValueError: it has other files.
      errors.CheckpointError: it cannot be written.
    """
    try:
      self.path.mkdir(parents=True, exist_ok=True)
      for path in self.path.iterdir():
        if path.name.startswith(_DRAFT):
          _remove(path)
        elif not _BASE.fullmatch(path.name) and not _DELTA.fullmatch(path.name):
          raise ValueError(
            f'{self.path} has {path.name}, which is no base or delta. Give a '
            'directory that has nothing else.'
          )
    except OSError as error:
      raise errors.CheckpointError(
        f'{self.path}, where deltas are written, cannot be used: {error}. Give '
        'another directory.'
      ) from error

  def bases(self) -> list[int]:
    """Returns the numbers of all bases, in order."""
    return sorted(int(match[1]) for match in self._names(_BASE))

  def sequences(self, base: int) -> list[int]:
    """Returns the numbers of a base's deltas, in order."""
    return sorted(
      int(match[2]) for match in self._names(_DELTA) if int(match[1]) == base
    )

  def base(self, number: int) -> pathlib.Path:
    """Returns the path of a base."""
    return self.path / f'base-{number:08d}'

  def delta(self, version: Version) -> pathlib.Path:
    """Returns the path of a delta."""
    return self.path / f'delta-{version.base:08d}-{version.sequence:08d}.npz'

  def manifest(self, base: int) -> dict[str, Any]:
    """Returns the manifest of a base.

    Raises:
      errors.CheckpointError: it is damaged or has another format.
    """
    path = self.base(base) / MANIFEST
    try:
      found = dict(json.loads(path.read_text(encoding='utf-8')))
    except (OSError, ValueError, TypeError) as error:
      raise errors.CheckpointError(
        f'{path} cannot be read: {error}. Delete {path.parent.name}, or have '
        'Deltas write a new base.'
      ) from error
    check_format(path, found)
    return found

  def publish_base(
    self, draft: pathlib.Path, number: int, manifest: Mapping[str, Any]
  ) -> int:
    """Gives a SavedModel the name of a base; returns its size in bytes.

    Args:
      draft: its folder.
      number: that of the base.
      manifest: the base's manifest, without format and number.
    """
    found = {'format': FORMAT, 'base': number, **manifest}
    text = json.dumps(found, indent=1)
    (draft / MANIFEST).write_text(text, encoding='utf-8')
    num_bytes = publish(draft, self.base(number))
    return num_bytes

  def remove_before(self, base: int) -> None:
    """Removes all bases with lower numbers, and their deltas."""
    for match in [*self._names(_BASE), *self._names(_DELTA)]:
      if int(match[1]) < base:
        _remove(self.path / match[0])

  @contextlib.contextmanager
  def draft(self, name: str) -> Iterator[pathlib.Path]:
    """Returns a path to write to, which is removed unless it is renamed."""
    with drafted(self.path / f'{_DRAFT}{name}-{self._own}') as path:
      yield path

  def _names(self, pattern: re.Pattern[str]) -> Sequence[re.Match[str]]:
    names = (path.name for path in self.path.iterdir())
    return [match for name in names if (match := pattern.fullmatch(name))]


def check_format(path: pathlib.Path, manifest: Mapping[str, Any]) -> None:
  """Raises CheckpointError if a manifest has another format's number."""
  if manifest.get('format') != FORMAT:
    raise errors.CheckpointError(
      f'{path} has format {manifest.get("format")!r}, and this version of tfps '
      f'reads format {FORMAT}. Use the version that wrote it.'
    )


@contextlib.contextmanager
def drafted(path: pathlib.Path) -> Iterator[pathlib.Path]:
  """Returns a path to write to, which is removed unless it is renamed."""
  _remove(path)
  try:
    yield path
  finally:
    _remove(path)


def publish(draft: pathlib.Path, path: pathlib.Path) -> int:
  """Renames what is complete, once it is on disk; returns its size in bytes."""
  files = [draft]
  if draft.is_dir():
    files = [each for each in draft.rglob('*') if each.is_file()]
    for folder in [draft, *filter(pathlib.Path.is_dir, draft.rglob('*'))]:
      _on_disk(folder)
  for file in files:
    _on_disk(file)
  draft.rename(path)
  _on_disk(path.parent)
  own = [path] if path.is_file() else path.rglob('*')
  return sum(each.stat().st_size for each in own if each.is_file())


def _on_disk(path: pathlib.Path) -> None:
  descriptor = os.open(path, os.O_RDONLY)
  try:
    os.fsync(descriptor)
  finally:
    os.close(descriptor)


def _remove(path: pathlib.Path) -> None:
  if path.is_dir():
    shutil.rmtree(path, ignore_errors=True)
  else:
    path.unlink(missing_ok=True)
