"""Pool of servers in this process, reused by successive clusters.

A `tf.distribute.Server` cannot be stopped: its port stays bound, and it keeps
some 90 threads and 40 MB. So servers that are no longer used are emptied and
kept for the next cluster, whose tasks of the same name they serve.
"""

import collections
from collections.abc import Iterable
from collections.abc import Sequence
import functools
import threading

import tensorflow as tf

from tfps._compat import strategy as strategy_compat
from tfps._utils import ports
from tfps.cluster import spec as spec_lib
from tfps.server import environment
from tfps.server import server as server_lib

_SOURCE = 'a cluster in this process'


class LocalCluster:
  """A cluster whose servers are all in this process; a context manager.

  Connecting starts a server for the chief, too, unless this process is
  connected to the same cluster already. So the chief's address is kept as long
  as the other servers are the same.

  Args:
    num_workers: the number of workers.
    num_ps: the number of ps.
    devices_per_worker: the number of logical CPUs of each worker. With several
      it does without the GPUs that this process sees.

  Raises:
    RuntimeError: servers of this process have too few threads for the cluster.
  """

  def __init__(
    self, num_workers: int, num_ps: int, *, devices_per_worker: int = 1
  ) -> None:
    config = server_lib.default_config(num_workers)
    _pool().ask_for_threads(config.inter_op_parallelism_threads)
    self._servers = _pool().lend(
      [
        *((spec_lib.Task('ps', i), 1) for i in range(num_ps)),
        *(
          (spec_lib.Task('worker', i), devices_per_worker)
          for i in range(num_workers)
        ),
      ]
    )

  @property
  def cluster(self) -> spec_lib.Cluster:
    """The cluster with this process as its chief.

    The chief's address changes after this process has connected to another
    cluster, which abandons the server at the old address.
    """
    return _pool().cluster_of(self._servers)

  def empty(self) -> None:
    """Deletes all variables and other resources of the servers."""
    for server in self._servers:
      _empty(server)

  def stop(self) -> None:
    """Returns the servers to the pool; stopping twice is harmless."""
    servers, self._servers = self._servers, []
    _pool().take_back(servers)

  def __enter__(self) -> 'LocalCluster':
    return self

  def __exit__(self, *exc_info: object) -> None:
    self.stop()


def is_here(address: str) -> bool:
  """Returns whether a server of the pool listens at an address."""
  return _pool().has(address)


# A task, and its number of logical CPUs.
_Kind = tuple[spec_lib.Task, int]


class _Pool:
  """Servers, lent or idle, by kind.

  All servers of a process share their threads. The first server fixes their
  number, whether it is in this pool or started by connecting.
  """

  def __init__(self) -> None:
    self._lock = threading.Lock()
    self._servers: list[server_lib.Server] = []
    self._idle: dict[_Kind, list[server_lib.Server]]
    self._idle = collections.defaultdict(list)
    self._kinds: dict[int, _Kind] = {}  # by the identity of the server
    self._num_threads = 0  # unknown before the first server
    self._jobs: dict[str, dict[int, str]] = {}
    self._chief_address = ''

  def has(self, address: str) -> bool:
    """Returns whether a server, lent or idle, has the address."""
    return address in {server.address for server in self._servers}

  def ask_for_threads(self, number: int) -> None:
    """Checks that the servers have so many threads.

    Raises:
      RuntimeError: they have fewer, which could deadlock.
    """
    with self._lock:
      if not self._num_threads:
        fixed = strategy_compat.num_server_threads()
        self._num_threads = fixed or max(number, environment.ENOUGH_THREADS)
      if self._num_threads < number:
        raise RuntimeError(
          f'{_SOURCE} needs {number} threads, and the first server of this '
          f'process has fixed their number to {self._num_threads}. Set '
          f'{environment.THREADS_VARIABLE}={number} in the environment, or '
          'make the largest cluster in this process first.'
        )

  def lend(self, kinds: Sequence[_Kind]) -> list[server_lib.Server]:
    """Returns idle servers of these kinds, or new ones."""
    with self._lock:
      return [self._find_or_start(kind) for kind in kinds]

  def take_back(self, servers: Iterable[server_lib.Server]) -> None:
    """Empties servers and makes them idle."""
    for server in servers:
      _empty(server)
      with self._lock:
        self._idle[self._kinds[id(server)]].append(server)

  def cluster_of(
    self, servers: Iterable[server_lib.Server]
  ) -> spec_lib.Cluster:
    """Returns the cluster of these servers, with this process as its chief."""
    jobs: dict[str, dict[int, str]] = {}
    for server in servers:
      jobs.setdefault(server.task.job, {})[server.task.index] = server.address
    with self._lock:
      if jobs != self._jobs or self._was_left():
        self._jobs = jobs
        self._chief_address = f'localhost:{ports.pick()}'
      jobs = {**jobs, 'chief': {0: self._chief_address}}
    return spec_lib.Cluster(jobs, spec_lib.CHIEF, source=_SOURCE)

  def _was_left(self) -> bool:
    """Returns whether this process was the chief, and has left the cluster.

    Its earlier server still listens at the chief's address.
    """
    others = tf.train.ClusterSpec(self._jobs)
    if strategy_compat.own_address_beside('chief', others) is not None:
      return False
    return not ports.is_free(int(self._chief_address.rpartition(':')[2]))

  def _find_or_start(self, kind: _Kind) -> server_lib.Server:
    if self._idle[kind]:
      return self._idle[kind].pop()
    task, num_devices = kind
    config = tf.compat.v1.ConfigProto(
      inter_op_parallelism_threads=self._num_threads,
      device_count={'CPU': num_devices},
    )
    if task.job == 'ps' or num_devices > 1:
      config.device_count['GPU'] = 0
    server = server_lib.Server(_alone(task), config=config)
    self._servers.append(server)
    self._kinds[id(server)] = kind
    return server


@functools.cache
def _pool() -> _Pool:
  return _Pool()


def _empty(server: server_lib.Server) -> None:
  tf.compat.v1.Session.reset(server.target)


def _alone(task: spec_lib.Task) -> spec_lib.Cluster:
  jobs = {'ps': {}, 'worker': {}, task.job: {task.index: 'localhost:0'}}
  return spec_lib.Cluster(jobs, task, source=_SOURCE)
