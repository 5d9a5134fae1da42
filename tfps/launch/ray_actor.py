"""Actor of a Ray cluster that runs one task of a job on its node.

Ray starts the actor again if its process or node is lost, perhaps on another
node. The caller then has to `open` it again, and to `run` its program.
"""

import os

from tfps._utils import ports
from tfps.cluster import spec as spec_lib
from tfps.launch import task_process


class TaskActor:
  """Runs a task; its methods are called by several threads of the actor.

  Args:
    order: what to run.
  """

  def __init__(self, order: task_process.Order) -> None:
    import ray

    self._order = order
    self._host = ray.util.get_node_ip_address()
    self._process: task_process.TaskProcess | None = None

  def __repr__(self) -> str:
    return str(self._order.task)  # Ray shows it before each line of output

  def open(self, earlier: str | None) -> str:
    """Returns an address for the task's server; a program that runs is killed.

    Args:
      earlier: the task's last address, which is kept if it is free here.
    """
    if self._process is not None:
      self._process.kill()
    self._process = task_process.TaskProcess(
      self._order, continues=earlier is not None
    )
    host, _, port = (earlier or '').rpartition(':')
    if host != self._host or not ports.is_free(int(port)):
      port = str(ports.pick())
    return f'{self._host}:{port}'

  def run(self, tf_config: str) -> task_process.Outcome:
    """Runs the program to its end.

    Args:
      tf_config: the cluster, as in `TF_CONFIG`.
    """
    cluster = spec_lib.Cluster.from_tf_config({'TF_CONFIG': tf_config})
    # Ray has set CUDA_VISIBLE_DEVICES to the GPUs that the actor reserves.
    gpus = self._order.job.visible_gpus(
      self._order.task, place=0, env=os.environ
    )
    assert self._process is not None  # `open` comes first
    return self._process.run(cluster, gpus)

  def stop(self) -> None:
    """Stops the program, which has the job's grace_secs to end."""
    if self._process is not None:
      self._process.stop()
