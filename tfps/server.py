"""A task's server."""

from typing import Any

import tensorflow as tf

from tfps import cluster as cluster_lib
from tfps import errors


class Server:
  """A running `tf.distribute.Server` for the cluster's own task."""

  def __init__(
    self, cluster: cluster_lib.Cluster, *, config: Any = None
  ) -> None:
    assert cluster.task is not None
    self.task = cluster.task
    try:
      self._server = tf.distribute.Server(
        cluster.spec(),
        job_name=self.task.job,
        task_index=self.task.index,
        config=config or default_config(cluster),
      )
    except tf.errors.OpError as error:
      raise errors.ServerStartError(
        f'{self.task} could not start its server at '
        f'{cluster.address(self.task)}: {error.message}'
      ) from error

  @property
  def target(self) -> str:
    """The session target, such as 'grpc://localhost:2222'."""
    return self._server.target

  @property
  def address(self) -> str:
    """'host:port' that the server listens on."""
    return self.target.removeprefix('grpc://')

  def __enter__(self) -> 'Server':
    return self

  def __exit__(self, *exc_info: object) -> None:
    pass


def default_config(cluster: cluster_lib.Cluster) -> Any:
  """Threads enough for the cluster's workers, and no more."""
  return tf.compat.v1.ConfigProto(
    inter_op_parallelism_threads=cluster.num_workers + 28
  )
