"""Clusters of servers in this process, for tests that kill no task."""

from tfps.cluster import spec as spec_lib
from tfps.server import local_pool


class InProcessCluster:
  """Starts workers and ps in this process, which is their chief.

  ```
  with InProcessCluster(num_workers=2, num_ps=2) as cluster:
    strategy = tfps.ParameterServerStrategy(cluster.cluster)
  ```

  TensorFlow cannot stop a server, so servers are borrowed from a pool: however
  many clusters a program makes, its threads are those of the largest one.
  Leaving the context drops all variables.

  Args:
    num_workers: number of workers.
    num_ps: number of ps.
    devices_per_worker: number of logical CPUs of each worker. With several, a
      step has a replica on each, as on several GPUs, and workers do without
      GPUs that this process sees.

  Raises:
    ValueError: a number is less than 1.
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
    """The cluster, with this process as its chief."""
    return self._servers.cluster

  def heal(self) -> None:
    """Drops all variables on the servers, for the next test."""
    self._servers.empty()

  def stop(self) -> None:
    """Drops all variables and returns the servers; twice is harmless."""
    self._servers.stop()

  def __enter__(self) -> 'InProcessCluster':
    return self

  def __exit__(self, *exc_info: object) -> None:
    self.stop()
