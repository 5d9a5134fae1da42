"""Adds up tensors of several processes by TensorFlow's collectives.

The eager context of a worker knows the ps and itself alone, and cannot take
part in collectives with others: told of them later, it loses sight of the ps.
So each process has one more server, which knows those of all others, and a
session on it. A server meets no others than it was started with, and cannot be
stopped: other processes make another ring, for which each starts another one,
and what the one before takes, some 40 MB, is not given back.
"""

from collections.abc import Sequence
import concurrent.futures
import threading
import time
from typing import Any

import numpy as np
import tensorflow as tf

from tfps.server import server as server_lib

_JOB = 'ring'

WHOLE = 0  # the group of all processes
_KEYS_PER_GROUP = 512

Sum = concurrent.futures.Future[np.ndarray]


class CollectiveGroup:
  """Processes that add up arrays, all in the same order for each type.

  Args:
    addresses: of all, each with a port for itself.
    index: of this process.

  Attributes:
    index: the same.
    number: how many processes there are.
    has_failed: whether anything has.
  """

  def __init__(self, addresses: Sequence[str], index: int) -> None:
    self.index = index
    self.has_failed = False
    self.number = len(addresses)
    self._groups = [tuple(range(self.number))]
    config = server_lib.default_config(self.number)
    config.experimental.collective_group_leader = _device(0)
    config.device_filters.append(_device(index))
    self._config = config
    self._server = tf.distribute.Server(
      {_JOB: list(addresses)}, job_name=_JOB, task_index=index, config=config
    )
    self._sessions: list[Any] = []
    self._calls: dict[tuple[tf.DType, str, int], Any] = {}
    self._lock = threading.Lock()
    self._is_broken = False
    self._began: list[float] = []

  @property
  def waiting_secs(self) -> float | None:
    """For how long this process has been at an array; None if it is at none."""
    began = self._began[:1]
    return time.monotonic() - began[0] if began else None

  def group(self, members: Sequence[int]) -> int:
    """A number for some of the processes, who may add up among themselves.

    To be asked for by all processes, in the same order.

    Args:
      members: their indices, in order.
    """
    wanted = tuple(members)
    if wanted not in self._groups:
      self._groups.append(wanted)
    return self._groups.index(wanted)

  def begin_mean(self, vector: np.ndarray, group: int = WHOLE) -> Sum:
    """Begins to add up vectors of floats, and to divide by their number.

    Args:
      vector: of this process.
      group: of those who do.
    """
    return self._begin(vector, 'Div', group)

  def sum_of(self, vector: np.ndarray) -> np.ndarray:
    """The sum of the vectors that all processes give.

    Raises:
      tf.errors.OpError: somebody is lost, or the ring is broken off.
    """
    return self._begin(vector, 'Id', WHOLE).result()

  def break_off(self) -> None:
    """Has whatever waits here, or comes later, fail; twice is harmless."""
    with self._lock:
      self._is_broken = True
      sessions, self._sessions = self._sessions, []
    for session in sessions:
      session.close()

  def _begin(self, vector: np.ndarray, final: str, group: int) -> Sum:
    found: Sum = concurrent.futures.Future()
    # Not a pool's, which Python would wait for at its end.
    threading.Thread(
      target=self._run,
      args=(vector, final, group, found),
      name='tfps-ring',
      daemon=True,
    ).start()
    return found

  def _run(
    self, vector: np.ndarray, final: str, group: int, found: Sum
  ) -> None:
    now = time.monotonic()
    self._began.append(now)
    try:
      total = self._callable(vector.dtype, final, group)(vector)
    except BaseException as error:
      self.has_failed = True
      found.set_exception(error)
    else:
      found.set_result(total)
    finally:
      self._began.remove(now)

  def _callable(self, dtype: np.dtype, final: str, group: int) -> Any:
    key = (tf.as_dtype(dtype), final, group)
    with self._lock:
      if self._is_broken:
        raise tf.errors.CancelledError(None, None, 'The ring is broken off.')
      if key not in self._calls:
        self._calls[key] = self._make(*key)
      return self._calls[key]

  def _make(self, dtype: tf.DType, final: str, group: int) -> Any:
    # Calls are told apart by this number: of each, all members do the same.
    instance = 2 * dtype.as_datatype_enum + (final == 'Div')
    graph = tf.Graph()
    with graph.as_default(), tf.device(f'{_device(self.index)}/device:CPU:0'):
      given = tf.compat.v1.placeholder(dtype, [None])
      total = tf.raw_ops.CollectiveReduce(
        input=given,
        group_size=len(self._groups[group]),
        group_key=group + 1,
        instance_key=group * _KEYS_PER_GROUP + instance,
        merge_op='Add',
        final_op=final,
        subdiv_offsets=[0],
        communication_hint='ring',
      )
    session = tf.compat.v1.Session(
      self._server.target, graph=graph, config=self._config
    )
    self._sessions.append(session)
    return session.make_callable(total, [given])


def _device(index: int) -> str:
  return f'/job:{_JOB}/replica:0/task:{index}'
