"""Several servers in this process, for tests that need no process to die."""

from tfps.cluster import spec as spec_lib
from tfps.server import local_pool


class InProcessCluster:
  """Workers and ps in this process, whose chief this process is.

  ```
  with InProcessCluster(num_workers=2, num_ps=2) as cluster:
    strategy = tfps.ParameterServerStrategy(cluster.cluster)
  ```

  Servers are lent from a pool, because TensorFlow cannot stop one: clusters may
  come and go hundreds of times in one run, and threads stay bounded by the
  largest. Leaving the context drops all variables on them.

  Args:
    num_workers: how many workers.
    num_ps: how many ps.
    devices_per_worker: how many logical CPUs each worker has. With several, a
      step has a replica on each, as on several GPUs.
  """

  def __init__(
    self, num_workers: int, num_ps: int, *, devices_per_worker: int = 1
  ) -> None:
    for name, value in (
      ('num_workers', num_workers),
      ('num_ps', num_ps),
      ('devices_per_worker', devices_per_worker),
    ):
      if value < 1:
        raise ValueError(
          f'InProcessCluster: {name} is {value}. Ask for 1 or more.'
        )
    self._servers = local_pool.LocalCluster(
      num_workers, num_ps, devices_per_worker=devices_per_worker
    )

  @property
  def cluster(self) -> spec_lib.Cluster:
    """The cluster as its chief, this process, sees it."""
    return self._servers.cluster

  def heal(self) -> None:
    """Drops the variables that the last test left on the servers."""
    self._servers.empty()

  def stop(self) -> None:
    """Drops all variables and gives the servers back; twice is harmless."""
    self._servers.stop()

  def __enter__(self) -> 'InProcessCluster':
    return self

  def __exit__(self, *exc_info: object) -> None:
    self.stop()
