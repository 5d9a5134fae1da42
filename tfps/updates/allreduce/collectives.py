"""Adds up arrays of several processes by TensorFlow's collectives.

A worker's eager context knows only the ps and itself. It cannot join
collectives with others: if it is told of them later, it loses its connection to
the ps. So each process has another server, which knows those of all others, and
a session on it. A server cannot learn of others after its start and cannot be
stopped: a new group takes new servers, and the memory of the old ones, about 40
MB each, is not freed.
"""

from collections.abc import Sequence
import concurrent.futures
import threading
import time
from typing import Any

import numpy as np
import tensorflow as tf

from tfps.server import server as server_lib

_JOB = 'collective'

WHOLE = 0  # subgroup of all processes
_KEYS_PER_SUBGROUP = 512

Sum = concurrent.futures.Future[np.ndarray]


class CollectiveGroup:
  """Processes that add up arrays, in the same order for each type.

  Args:
    addresses: addresses of all processes, each with a port of its own.
    index: index of this process.

  Attributes:
    index: index of this process.
    size: number of processes.
    has_failed: whether a collective failed.
  """

  def __init__(self, addresses: Sequence[str], index: int) -> None:
    self.index = index
    self.has_failed = False
    self.size = len(addresses)
    self._subgroups = [tuple(range(self.size))]
    config = server_lib.default_config(self.size, uses_gpus=False)
    config.experimental.collective_group_leader = _device(0)
    config.device_filters.append(_device(index))
    self._config = config
    self._server = tf.distribute.Server(
      {_JOB: list(addresses)}, job_name=_JOB, task_index=index, config=config
    )
    self._sessions: list[Any] = []
    self._calls: dict[tuple[tf.DType, str, int], Any] = {}
    self._lock = threading.Lock()
    self._is_aborted = False
    self._began: list[float] = []

  @property
  def waiting_secs(self) -> float | None:
    """Seconds since the oldest pending collective began; None without one."""
    began = self._began[:1]
    return time.monotonic() - began[0] if began else None

  def subgroup(self, members: Sequence[int]) -> int:
    """Returns the number of a subgroup of processes.

    All processes call it with the same subgroups in the same order.

    Args:
      members: indices of its processes, in order.
    """
    wanted = tuple(members)
    if wanted not in self._subgroups:
      self._subgroups.append(wanted)
    return self._subgroups.index(wanted)

  def begin_mean(self, vector: np.ndarray, subgroup: int = WHOLE) -> Sum:
    """Begins to average vectors, in a thread.

    Args:
      vector: vector of this process, floats [n].
      subgroup: number of the subgroup that takes part.
    """
    return self._begin(vector, 'Div', subgroup)

  def sum(self, vector: np.ndarray) -> np.ndarray:
    """Returns the sum of the vectors of all processes.

    Args:
      vector: vector of this process, [n].

    Raises:
      tf.errors.OpError: a process is lost, or the group is aborted.
    """
    return self._begin(vector, 'Id', WHOLE).result()

  def abort(self) -> None:
    """Makes pending and later collectives of this process fail; idempotent."""
    with self._lock:
      self._is_aborted = True
      sessions, self._sessions = self._sessions, []
    for session in sessions:
      session.close()

  def _begin(self, vector: np.ndarray, final: str, subgroup: int) -> Sum:
    found: Sum = concurrent.futures.Future()
    # Not of a pool, whose threads Python joins at exit.
    threading.Thread(
      target=self._run,
      args=(vector, final, subgroup, found),
      name='tfps-collective',
      daemon=True,
    ).start()
    return found

  def _run(
    self, vector: np.ndarray, final: str, subgroup: int, found: Sum
  ) -> None:
    now = time.monotonic()
    self._began.append(now)
    try:
      total = self._callable(vector.dtype, final, subgroup)(vector)
    except BaseException as error:
      self.has_failed = True
      found.set_exception(error)
    else:
      found.set_result(total)
    finally:
      self._began.remove(now)

  def _callable(self, dtype: np.dtype, final: str, subgroup: int) -> Any:
    key = (tf.as_dtype(dtype), final, subgroup)
    with self._lock:
      if self._is_aborted:
        raise tf.errors.CancelledError(
          None, None, 'The collective group is aborted.'
        )
      if key not in self._calls:
        self._calls[key] = self._make(*key)
      return self._calls[key]

  def _make(self, dtype: tf.DType, final: str, subgroup: int) -> Any:
    # Distinguishes collectives; all members agree on it.
    instance = 2 * dtype.as_datatype_enum + (final == 'Div')
    graph = tf.Graph()
    with graph.as_default(), tf.device(f'{_device(self.index)}/device:CPU:0'):
      given = tf.compat.v1.placeholder(dtype, [None])
      total = tf.raw_ops.CollectiveReduce(
        input=given,
        group_size=len(self._subgroups[subgroup]),
        group_key=subgroup + 1,
        instance_key=subgroup * _KEYS_PER_SUBGROUP + instance,
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
