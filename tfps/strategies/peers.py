"""The tasks that run a between-graph program, and what they have in common."""

from collections.abc import Mapping
import itertools
import time

import tensorflow as tf

from tfps.cluster import spec as spec_lib
from tfps.server import local_pool
from tfps.server import task_monitor
from tfps.strategies import session_setup


class Peers:
  """The chief and the workers of a cluster, of which one is this process.

  A server in this process that is another task runs no program.

  Args:
    cluster: the cluster.
    own: the task of this process.

  Attributes:
    tasks: the tasks, the chief first.
    index: the place of this process' task among them.
  """

  def __init__(self, cluster: spec_lib.Cluster, own: spec_lib.Task) -> None:
    self._cluster = cluster
    self.tasks = [
      task
      for task in (*cluster.tasks('chief'), *cluster.tasks('worker'))
      if task == own or not local_pool.is_here(cluster.address(task))
    ] or [own]
    self.index = self.tasks.index(own)

  def addresses(self) -> dict[spec_lib.Task, str]:
    """Returns the addresses of all tasks; none in a cluster of one process."""
    if not self._cluster.jobs:
      return {}
    return {task: self._cluster.address(task) for task in self.tasks}

  def input_context(self, num_replicas: int) -> tf.distribute.InputContext:
    """Returns the context of this process' datasets.

    Args:
      num_replicas: number of replicas among which batches are divided.
    """
    return tf.distribute.InputContext(
      num_input_pipelines=len(self.tasks),
      input_pipeline_id=self.index,
      num_replicas_in_sync=num_replicas,
    )

  def monitor(
    self, others: Mapping[spec_lib.Task, str] | None = None
  ) -> task_monitor.TaskMonitor:
    """Returns a monitor of all tasks, in which this process begins now.

    Args:
      others: addresses of further tasks.
    """
    begun, own = time.monotonic(), self.tasks[self.index]
    addresses = {**self.addresses(), **(others or {})}
    return task_monitor.TaskMonitor(addresses, lambda: {own: begun})

  def workers(self) -> session_setup.Workers:
    """Returns all tasks as the workers of a session."""
    own = self.tasks[self.index]
    others = {
      task: address for task, address in self.addresses().items() if task != own
    }
    return session_setup.Workers(
      number=len(self.tasks),
      current=lambda: self.index,
      number_of=self.tasks.index,
      others=lambda: others,
      slots=itertools.repeat(self.index),
    )
