"""Storage of snapshots: written and read by the chief, or by each ps.

What the chief writes goes through its memory and network link. What each ps
writes does not, but needs a disk that all tasks reach.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import dataclasses
import itertools
import os
import pathlib
import shutil
import time
from typing import Any
from typing import Protocol

import tensorflow as tf

from tfps import errors
from tfps._compat import cancellation
from tfps._utils import deadlines
from tfps._utils import threads
from tfps._utils import timeouts
from tfps.recovery import frozen_rows
from tfps.recovery import inventory
from tfps.variables import placement_ledger

_VALUES = 'values'
# Errors of a disk; all others are about a task or the connection to it.
_DISK_ERRORS = (
  tf.errors.NotFoundError,
  tf.errors.PermissionDeniedError,
  tf.errors.ResourceExhaustedError,
  tf.errors.DataLossError,
  tf.errors.OutOfRangeError,
)


class DiskError(Exception):
  """A file could not be written or read; the message tells why."""


@dataclasses.dataclass(frozen=True)
class Values:
  """Values of variables and shards on one device.

  Attributes:
    device: name of the device.
    pieces: the variables and shards.
    tensors: one value for each piece.
    frozen: rows of further variables, which are written in slices.
  """

  device: str
  pieces: Sequence[inventory.Piece]
  tensors: Sequence[tf.Tensor]
  frozen: Sequence[frozen_rows.FrozenRows] = ()

  def drop(self) -> None:
    """Drops the frozen rows."""
    for each in self.frozen:
      each.drop()

  def slices(
    self, prefix: str
  ) -> Iterator[tuple[str, inventory.Piece, tf.Tensor]]:
    """Yields slices of the frozen rows, each with the prefix of its files.

    Args:
      prefix: of those of the other values.

    Raises:
      tf.errors.OpError: the device is lost.
    """
    folder = pathlib.Path(prefix).parent
    slices = itertools.chain.from_iterable(
      frozen.slices() for frozen in self.frozen
    )
    for number, (piece, values) in enumerate(slices):
      own = folder.with_name(f'{folder.name}-{number}') / _VALUES
      yield os.fspath(own), piece, values


class Disk(Protocol):
  """Way in which tasks reach a directory."""

  def check(self, directory: pathlib.Path) -> None:
    """Raises DiskError if the directory cannot be used."""

  def write(self, folder: pathlib.Path, groups: Sequence[Values]) -> list[str]:
    """Writes each group and returns the prefixes of their files.

    Args:
      folder: folder of the snapshot.
      groups: values, one group for each device.

    Raises:
      DiskError: it could not be written.
      tf.errors.OpError: a device is lost.
    """

  def read(
    self, piece: inventory.Piece, restore: Callable[[], tf.Tensor]
  ) -> tf.Tensor:
    """Calls `restore` on the task that is to read; returns its result.

    Args:
      piece: the variable or shard to read.
      restore: reads its value on the current device.

    Raises:
      DiskError: it cannot be read.
      tf.errors.OpError: a device is lost.
    """

  def try_to_read(self, number: int, restore: Callable[[], tf.Tensor]) -> None:
    """Calls `restore` on a task that can read the directory, as a check.

    Args:
      number: of the call; if all ps can read, they take turns.
      restore: reads a value on the current device, where it stays.

    Raises:
      DiskError: it cannot be read.
      tf.errors.OpError: a device is lost.
    """


class ChiefDisk(Disk):
  """Disk that only the chief reaches.

  Args:
    device: CPU of the chief.
  """

  def __init__(self, device: str) -> None:
    self._device = device

  def check(self, directory: pathlib.Path) -> None:
    """Does nothing: no other task uses the directory."""

  def write(self, folder: pathlib.Path, groups: Sequence[Values]) -> list[str]:
    prefixes = [_prefix(folder, i) for i in range(len(groups))]
    with tf.device(self._device):
      for prefix, group in zip(prefixes, groups, strict=True):
        # One group after the other bounds the memory of this process.
        here = [tf.identity(tensor) for tensor in group.tensors]
        _save_here(prefix, group.pieces, here)
    for prefix, group in list(zip(prefixes, groups, strict=True)):
      for own, piece, values in group.slices(prefix):
        with tf.device(self._device):
          _save_here(own, [piece], [tf.identity(values)])
        prefixes.append(own)
    return prefixes

  def read(
    self, piece: inventory.Piece, restore: Callable[[], tf.Tensor]
  ) -> tf.Tensor:
    del piece
    return self._read(restore)

  def try_to_read(self, number: int, restore: Callable[[], tf.Tensor]) -> None:
    del number
    self._read(restore)

  def _read(self, restore: Callable[[], tf.Tensor]) -> tf.Tensor:
    with tf.device(self._device):
      try:
        return restore()
      except tf.errors.OpError as error:
        raise DiskError(errors.first_line(error)) from error


class SharedDisk(Disk):
  """Disk that the chief and all ps reach by the same name.

  Args:
    num_ps: number of ps.
  """

  def __init__(self, num_ps: int) -> None:
    cancellation.keep_apart()
    self._devices = [placement_ledger.ps_device(ps) for ps in range(num_ps)]
    self._functions: dict[str, tuple[Sequence[inventory.Piece], Any]] = {}
    # Without autograph, which is not safe while another thread traces.
    self._save_slice = tf.function(
      _save_slice, autograph=False, reduce_retracing=True
    )

  def check(self, directory: pathlib.Path) -> None:
    trial = directory / f'trial-{os.getpid()}-{time.time_ns()}'
    write_trial = _trial_function()
    try:
      trial.mkdir()
      (trial / 'chief').write_text('chief', encoding='utf-8')
      for device in self._devices:
        with _explaining(device, 'use', directory), tf.device(device):
          tf.io.read_file(os.fspath(trial / 'chief')).numpy()
          own = trial / f'ps-{placement_ledger.ps_index(device)}'
          write_trial(tf.constant(os.fspath(own))).numpy()
        _wait_for(own, device)
    finally:
      shutil.rmtree(trial, ignore_errors=True)

  def write(self, folder: pathlib.Path, groups: Sequence[Values]) -> list[str]:
    prefixes = [_prefix(folder, i) for i in range(len(groups))]
    written = threads.map_all(
      'tfps-write',
      lambda each: self._write(*each),
      zip(prefixes, groups, strict=True),
      at_once=len(groups),
    )
    return [prefix for each in written for prefix in each]

  def read(
    self, piece: inventory.Piece, restore: Callable[[], tf.Tensor]
  ) -> tf.Tensor:
    return _read_on(piece.variable.device, piece.key, restore)

  def try_to_read(self, number: int, restore: Callable[[], tf.Tensor]) -> None:
    device = self._devices[number % len(self._devices)]
    _read_on(device, 'a value', restore)

  def _write(self, prefix: str, group: Values) -> list[str]:
    pieces, function = self._functions.get(group.device, (None, None))
    if pieces is not group.pieces:
      function = _saving_function(group.pieces)
      self._functions[group.device] = group.pieces, function
    assert function is not None
    with (
      _explaining(group.device, 'write', prefix),
      tf.device(group.device),
    ):
      function(tf.constant(prefix), list(group.tensors)).numpy()
    prefixes = [prefix]
    for own, piece, values in group.slices(prefix):
      with _explaining(group.device, 'write', own), tf.device(group.device):
        self._save_slice(
          *map(tf.constant, (own, piece.key, piece.slice_spec)), values
        ).numpy()
      prefixes.append(own)
    for each in prefixes:
      _wait_for(pathlib.Path(f'{each}.index'), group.device)
    return prefixes


def _read_on(
  device: str, what: str, restore: Callable[[], tf.Tensor]
) -> tf.Tensor:
  with _explaining(device, 'read', what), tf.device(device):
    value = restore()
    # A failure is reported only once the value is used.
    tf.size(value).numpy()
  return value


@contextlib.contextmanager
def _explaining(device: str, what: str, path: object) -> Iterator[None]:
  try:
    yield
  except _DISK_ERRORS as error:
    raise _disk_error(
      device, f'cannot {what} {path}: {errors.first_line(error)}'
    ) from error


def _wait_for(path: pathlib.Path, device: str) -> None:
  """Waits until this process sees a file that a ps has written."""
  deadline = deadlines.after(timeouts.current().file_visible_secs)
  while not path.exists():
    if deadlines.is_over(deadline):
      raise _disk_error(
        device, f'has written {path}, which the chief does not see'
      )
    time.sleep(timeouts.current().poll_secs)


def _disk_error(device: str, what: str) -> DiskError:
  return DiskError(
    f'ps:{placement_ledger.ps_index(device)} {what}. With written_by="ps", the '
    'directory must be on a disk that the chief and all ps reach by the same '
    'name and may write to. Mount it there, or set written_by="chief".'
  )


def _prefix(folder: pathlib.Path, number: int) -> str:
  return os.fspath(folder / f'part-{number}' / _VALUES)


def _saving_function(pieces: Sequence[inventory.Piece]) -> Any:
  def save(prefix: tf.Tensor, tensors: list[tf.Tensor]) -> tf.Tensor:
    with tf.control_dependencies([_save(prefix, pieces, tensors)]):
      return tf.constant(True)

  # Without autograph, which is not safe while another thread traces.
  return tf.function(save, autograph=False)


def _trial_function() -> Any:
  def write_trial(path: tf.Tensor) -> tf.Tensor:
    with tf.control_dependencies([tf.io.write_file(path, 'ps')]):
      return tf.constant(True)

  return tf.function(write_trial, autograph=False)


def _save_slice(
  prefix: tf.Tensor, key: tf.Tensor, spec: tf.Tensor, values: tf.Tensor
) -> tf.Tensor:
  saved = tf.raw_ops.SaveV2(
    prefix=prefix,
    tensor_names=[key],
    shape_and_slices=[spec],
    tensors=[values],
  )
  with tf.control_dependencies([saved]):
    return tf.constant(True)


def _save_here(
  prefix: str, pieces: Sequence[inventory.Piece], tensors: Sequence[tf.Tensor]
) -> None:
  try:
    _save(prefix, pieces, tensors)
  except tf.errors.OpError as error:
    raise DiskError(errors.first_line(error)) from error


def _save(
  prefix: Any, pieces: Sequence[inventory.Piece], tensors: Sequence[tf.Tensor]
) -> Any:
  return tf.raw_ops.SaveV2(
    prefix=prefix,
    tensor_names=[piece.key for piece in pieces],
    shape_and_slices=[piece.slice_spec for piece in pieces],
    tensors=tensors,
  )
