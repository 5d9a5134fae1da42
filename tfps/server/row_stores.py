"""The stores of rows of a process, which graphs use by functions of it.

A server offers the functions: its own Python code keeps rows of variables on
its device. See `host_functions`.
"""

from collections.abc import Callable
import functools
import json
import threading
from typing import Any

import numpy as np

from tfps._compat import host_functions
from tfps.server import row_file
from tfps.server import row_store

READ = 'read_stored_rows'
WRITE = 'write_stored_rows'
FORGET = 'forget_stored_rows'
COUNT = 'count_stored_rows'
FREEZE = 'freeze_stored_rows'
READ_FROZEN = 'read_frozen_rows'
THAW = 'thaw_stored_rows'


def offer() -> None:
  """Lets graphs that this process executes use stores; may be repeated."""
  for name, function in _FUNCTIONS.items():
    host_functions.offer(name, function)


class Stores:
  """The stores of this process, by name."""

  def __init__(self) -> None:
    self._lock = threading.Lock()
    self._stores: dict[str, row_store.RowStore] = {}
    self._groups: dict[str, row_store.Group] = {}

  def store(
    self, place: row_file.Place, like: np.ndarray
  ) -> row_store.RowStore:
    """Returns a store, which it makes if there is none.

    Args:
      place: which one.
      like: array of rows.

    Raises:
      ValueError: its directory cannot be used.
    """
    with self._lock:
      group = self._groups.setdefault(place.group, row_store.Group())
      group.memory_bytes = place.memory_bytes
      if place.name not in self._stores:
        store = row_store.RowStore(place, group, like)
        self._stores[place.name] = store
        group.stores[place.name] = store
      return self._stores[place.name]

  def forget(self, place: row_file.Place, *, all_of_group: bool) -> None:
    """Forgets a store, or all of its group, with their rows."""
    with self._lock:
      group = self._groups.get(place.group, row_store.Group())
      for name in list(group.stores):
        if all_of_group or name == place.name:
          del self._stores[name], group.stores[name]

  def counts(
    self, place: row_file.Place, *, all_of_group: bool
  ) -> row_store.Counts:
    """Returns the counts of a store, or the sums of those of its group."""
    with self._lock:
      group = self._groups.get(place.group, row_store.Group())
      stores = [
        store
        for name, store in group.stores.items()
        if all_of_group or name == place.name
      ]
    return row_store.Counts.sums(store.counts() for store in stores)


_STORES = Stores()


def _read(
  handle: Any, place: bytes, rows: np.ndarray, otherwise: np.ndarray
) -> list[np.ndarray]:
  del handle
  store = _STORES.store(_decoded(place), otherwise)
  return [store.read(rows, otherwise)]


def _write(
  handle: Any, place: bytes, rows: np.ndarray, values: np.ndarray
) -> list[np.ndarray]:
  del handle
  _STORES.store(_decoded(place), values).write(rows, values)
  return [np.array(len(rows), np.int64)]


def _forget(
  handle: Any, place: bytes, all_of_group: np.bool_
) -> list[np.ndarray]:
  del handle
  _STORES.forget(_decoded(place), all_of_group=bool(all_of_group))
  return [np.array(0, np.int64)]


def _count(
  handle: Any, place: bytes, all_of_group: np.bool_
) -> list[np.ndarray]:
  del handle
  counts = _STORES.counts(_decoded(place), all_of_group=bool(all_of_group))
  return [np.array(counts, np.int64)]


def _freeze(handle: Any, place: bytes, like: np.ndarray) -> list[np.ndarray]:
  del handle
  return [np.array(_STORES.store(_decoded(place), like).freeze(), np.int64)]


def _read_frozen(
  handle: Any, place: bytes, rows: np.ndarray, otherwise: np.ndarray
) -> list[np.ndarray]:
  del handle
  store = _STORES.store(_decoded(place), otherwise)
  return [store.read_frozen(rows, otherwise)]


def _thaw(handle: Any, place: bytes, like: np.ndarray) -> list[np.ndarray]:
  del handle
  _STORES.store(_decoded(place), like).thaw()
  return [np.array(0, np.int64)]


_FUNCTIONS: dict[str, Callable[..., list[np.ndarray]]] = {
  READ: _read,
  WRITE: _write,
  FORGET: _forget,
  COUNT: _count,
  FREEZE: _freeze,
  READ_FROZEN: _read_frozen,
  THAW: _thaw,
}


@functools.lru_cache(maxsize=1 << 12)
def _decoded(place: bytes) -> row_file.Place:
  return row_file.Place(**json.loads(place))
