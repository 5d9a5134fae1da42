"""Snapshots: the values of many variables at one moment, on disk.

Each snapshot is a folder with a file in TensorFlow's checkpoint format, in
which shards of a variable are parts of one tensor, and a JSON file with the
number of the format and a list of the variables. A folder gets its name once
it is complete and has been read back.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import dataclasses
import functools
import json
import os
import pathlib
import re
import shutil
import time
import uuid

from absl import logging
import tensorflow as tf

from tfps import errors
from tfps._compat import tensor_bundle
from tfps._utils import private_files
from tfps.monitor import families
from tfps.monitor import registry as registry_lib
from tfps.recovery import inventory
from tfps.recovery import snapshot_storage

_NAME = re.compile(r'snapshot-(\d+)')
_JOB_FILE = 'job'
# Fits the name of a resource container, which has no underscores.
_JOB_NAME = re.compile(r'tfps-[0-9a-f]{32}')
_DRAFT = 'draft-'
_VALUES = 'values'
_CONTENTS = 'contents.json'
# Raised when the contents of a folder change.
_FORMAT = 2
_DISK_ERRORS = (snapshot_storage.DiskError, OSError)
_READ_ERRORS = (tf.errors.OpError, OSError, ValueError, KeyError, TypeError)


class FormatError(errors.CheckpointError):
  """A snapshot has a format that this version of tfps does not read."""


@dataclasses.dataclass(frozen=True)
class Snapshot:
  """Snapshot that has been written and read back.

  Attributes:
    path: its folder.
    contents: shape and type of each variable, by key.
  """

  path: pathlib.Path
  contents: dict[str, tuple[list[int], str]]

  @classmethod
  def load(cls, path: pathlib.Path, disk: snapshot_storage.Disk) -> 'Snapshot':
    """Loads the snapshot in a folder and reads all of it as a check.

    Args:
      path: the folder.
      disk: way in which tasks read it.

    Raises:
      FormatError: it has another format.
      errors.CheckpointError: it is damaged.
      tf.errors.OpError: a ps is lost.
    """
    with _finding_damage(path):
      text = (path / _CONTENTS).read_text(encoding='utf-8')
      found = dict(json.loads(text))
      _check_format(path, found.get('format'))
      contents = {
        key: (list(shape), str(dtype))
        for key, (shape, dtype) in found['variables'].items()
      }
      snapshot = cls(path, contents)
      parts = [
        (key, part) for key in contents for part in snapshot.reader.parts(key)
      ]
    with _finding_damage(path, _DISK_ERRORS):
      for number, part in enumerate(parts):  # reading compares checksums
        disk.try_to_read(number, functools.partial(snapshot.read, *part))
    return snapshot

  @functools.cached_property
  def reader(self) -> tensor_bundle.Reader:
    """Reader of slices of its values, in this process."""
    return tensor_bundle.Reader(os.fspath(self.path / _VALUES))

  @property
  def age_secs(self) -> float:
    """Seconds since it was written."""
    return max(0.0, time.time() - (self.path / _CONTENTS).stat().st_mtime)

  def check(self, entry: inventory.Entry) -> None:
    """Raises CheckpointError if it has another variable of that name."""
    mine = (entry.shape, entry.dtype.name)
    found = self.contents.get(entry.key, mine)
    if found != mine:
      raise errors.CheckpointError(
        f'{self.path}: {entry.key} is {found[1]} {found[0]}, and this '
        f'program makes it {mine[1]} {mine[0]}. Start the program that wrote '
        'it, or use another directory for recovery. If a vocabulary has '
        'changed, tfps.checkpoints.warm_start restores the rows that are in '
        'both from a tf.train.Checkpoint, which that program can save.'
      )

  def read(self, key: str, slice_spec: str) -> tf.Tensor:
    """Reads the value of a variable, or of a part of it, on the current device.

    Args:
      key: the variable's key.
      slice_spec: the part in the format of `SaveV2`; empty for all of it.

    Raises:
      tf.errors.OpError: it cannot be read.
    """
    (value,) = tf.raw_ops.RestoreV2(
      prefix=os.fspath(self.path / _VALUES),
      tensor_names=[key],
      shape_and_slices=[slice_spec],
      dtypes=[tf.as_dtype(self.contents[key][1])],
    )
    return value


class SnapshotStore:
  """Snapshots in a directory.

  Args:
    directory: created if it does not exist.
    max_to_keep: how many snapshots to keep there.
    device: CPU of this process, on which snapshots are read back.
    disk: way in which tasks reach the directory.
    confirm: called before a snapshot gets its name; raises an error if this
      process may no longer write.

  Attributes:
    latest: last snapshot that was written or found; None if there is none.

  Raises:
    errors.CheckpointError: it cannot be written, or no snapshot can be read.
  """

  def __init__(
    self,
    directory: str | os.PathLike[str],
    *,
    max_to_keep: int,
    device: str,
    disk: snapshot_storage.Disk,
    confirm: Callable[[], object],
  ) -> None:
    self._directory = pathlib.Path(directory).absolute()
    self._max_to_keep = max_to_keep
    self._device = device
    self._disk = disk
    self._confirm = confirm
    self._num_drafts = 0
    for left in self._directory.glob(f'{_DRAFT}*'):  # of a killed process
      shutil.rmtree(left, ignore_errors=True)
    _check_writable(self._directory)
    try:
      disk.check(self._directory)
    except _DISK_ERRORS as error:
      raise errors.CheckpointError(str(error)) from error
    self.latest: Snapshot | None = None
    self.find()
    registry_lib.of_process().offer('snapshots', self, _ages)

  def write(
    self,
    entries: Iterable[inventory.Entry],
    groups: Sequence[snapshot_storage.Values],
  ) -> None:
    """Writes a snapshot, reads it back and deletes surplus ones.

    Args:
      entries: all variables.
      groups: their values, grouped by device.

    Raises:
      errors.CheckpointError: it could not be written; earlier ones stay.
      tf.errors.OpError: a device is lost.
    """
    contents = {e.key: (e.shape, e.dtype.name) for e in entries}
    # Names are never reused: a task that thaws may still write to an old draft.
    self._num_drafts += 1
    draft = self._directory / f'{_DRAFT}{os.getpid()}-{self._num_drafts}'
    registry = registry_lib.of_process()
    writing = registry.timed('writes a snapshot', families.SNAPSHOT_SECONDS)
    with writing, self._making(draft):
      with self._explaining(draft):
        prefixes = self._disk.write(draft, groups)
      with (
        self._explaining(draft, (*_DISK_ERRORS, tf.errors.OpError)),
        tf.device(self._device),
      ):
        tf.raw_ops.MergeV2Checkpoints(
          checkpoint_prefixes=prefixes,
          destination_prefix=os.fspath(draft / _VALUES),
          delete_old_dirs=True,
        )
        found = {'format': _FORMAT, 'variables': contents}
        _write_durably(draft / _CONTENTS, json.dumps(found, indent=1))
        private_files.keep_to_owner(draft)
      with self._explaining(draft, (*_DISK_ERRORS, errors.CheckpointError)):
        path = self._name(draft)
    registry.add(families.SNAPSHOTS)
    self.latest = Snapshot(path, contents)
    for old in self._paths()[: -self._max_to_keep]:
      shutil.rmtree(old, ignore_errors=True)

  def read(self, snapshot: Snapshot, piece: inventory.Piece) -> tf.Tensor:
    """Reads the value of a piece on the device that the disk prescribes.

    Args:
      snapshot: the snapshot to read.
      piece: a variable or shard.

    Raises:
      errors.CheckpointError: the snapshot is damaged or missing.
      tf.errors.OpError: a device is lost.
    """
    with _finding_damage(snapshot.path, _DISK_ERRORS):
      return self._disk.read(
        piece, lambda: snapshot.read(piece.key, piece.slice_spec)
      )

  def _name(self, draft: pathlib.Path) -> pathlib.Path:
    """Turns a draft into a snapshot once it can be read."""
    with tf.device(self._device):
      Snapshot.load(draft, self._disk)
    self._confirm()
    return draft.rename(self._directory / self._next_name())

  @contextlib.contextmanager
  def _making(self, folder: pathlib.Path) -> Iterator[None]:
    with self._explaining(folder):
      shutil.rmtree(folder, ignore_errors=True)
      folder.mkdir(private_files.FOLDER_MODE)
    try:
      yield
    except BaseException:
      shutil.rmtree(folder, ignore_errors=True)
      raise

  @contextlib.contextmanager
  def _explaining(
    self,
    folder: pathlib.Path,
    kinds: tuple[type[Exception], ...] = _DISK_ERRORS,
  ) -> Iterator[None]:
    try:
      yield
    except kinds as error:
      raise errors.CheckpointError(
        f'{folder} could not be written: {errors.first_line(error)}. '
        f'{self._describe_latest()}'
      ) from error

  def find(self) -> Snapshot | None:
    """Sets `latest` to the last snapshot that can be read.

    Returns:
      The snapshot; None if the directory has none.

    Raises:
      FormatError: the last one has another format. An earlier one does not
        take its place: that would silently undo training.
      errors.CheckpointError: there are snapshots of which none can be read.
      tf.errors.OpError: a ps is lost.
    """
    self.latest = None
    paths = self._paths()
    for path in reversed(paths):
      try:
        with tf.device(self._device):
          self.latest = Snapshot.load(path, self._disk)
        return self.latest
      except FormatError:
        raise
      except errors.CheckpointError as error:
        logging.warning('%s', error)
    if paths:
      raise errors.CheckpointError(
        f'{self._directory}: none of {", ".join(p.name for p in paths)} can '
        'be read. Restore an intact copy, or use another directory to train '
        'from the beginning.'
      )
    return None

  def _next_name(self) -> str:
    number = max((_number(path) for path in self._paths()), default=0)
    return f'snapshot-{number + 1:06d}'

  def _paths(self) -> list[pathlib.Path]:
    """Returns the folders of all snapshots, oldest first."""
    found = [p for p in self._directory.iterdir() if _NAME.fullmatch(p.name)]
    return sorted(found, key=_number)

  def _describe_latest(self) -> str:
    if self.latest is None:
      return 'There is no earlier snapshot.'
    return f'The latest is {self.latest.path}.'


def job_name(directory: str | os.PathLike[str]) -> str:
  """Returns the unique name of the job whose snapshots a directory holds.

  A directory without a name gets a new one.

  Args:
    directory: created if it does not exist.

  Raises:
    errors.CheckpointError: the directory cannot be written.
  """
  path = pathlib.Path(directory, _JOB_FILE)
  try:
    if path.exists() and _JOB_NAME.fullmatch(name := path.read_text()):
      return name
    name = f'tfps-{uuid.uuid4().hex}'
    private_files.make_folder(path.parent)
    draft = path.with_name(f'{_JOB_FILE}-{os.getpid()}')
    try:
      _write_durably(draft, name)
      draft.replace(path)
    finally:
      draft.unlink(missing_ok=True)
  except OSError as error:
    raise errors.unwritable_directory(directory, error) from error
  return name


def _ages(store: SnapshotStore) -> Iterator[families.Sample]:
  """Yields the age of the latest snapshot, if there is one."""
  if latest := store.latest:
    with contextlib.suppress(FileNotFoundError):  # it was just deleted
      yield families.Sample(families.SNAPSHOT_AGE, latest.age_secs)


@contextlib.contextmanager
def _finding_damage(
  path: pathlib.Path, kinds: tuple[type[Exception], ...] = _READ_ERRORS
) -> Iterator[None]:
  try:
    yield
  except kinds as error:
    raise errors.CheckpointError(
      f'{path} is damaged: {errors.first_line(error)}'
    ) from error


def _check_format(path: pathlib.Path, number: object) -> None:
  if number != _FORMAT:
    has = 'no format number' if number is None else f'format {number!r}'
    raise FormatError(
      f'{path / _CONTENTS} has {has}, and this version of tfps reads format '
      f'{_FORMAT}. Continue with the version that wrote it, or use another '
      'directory to train from the beginning.'
    )


def _check_writable(directory: pathlib.Path) -> None:
  trial = directory / f'trial-{os.getpid()}'
  try:
    private_files.make_folder(directory)
    try:
      _write_durably(trial, 'trial')
    finally:
      trial.unlink(missing_ok=True)
  except OSError as error:
    raise errors.unwritable_directory(directory, error) from error


def _write_durably(path: pathlib.Path, text: str) -> None:
  with private_files.open_file(path, 'w', encoding='utf-8') as file:
    file.write(text)
    file.flush()
    os.fsync(file.fileno())


def _number(path: pathlib.Path) -> int:
  match = _NAME.fullmatch(path.name)
  return int(match[1]) if match else 0
