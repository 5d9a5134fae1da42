"""The tasks that run a between-graph program, and what they have in common."""

from collections.abc import Callable
import itertools
from typing import Any

import tensorflow as tf

from tfps.cluster import spec as spec_lib
from tfps.server import local_pool
from tfps.updates import policies
from tfps.updates import sessions
from tfps.updates import step_log as step_log_lib
from tfps.updates.sync import failure_detector
from tfps.updates.sync import ps_state
from tfps.updates.sync import session as session_lib

# Counts repeated steps; see `recovery.events`.
Tell = Callable[..., None]


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

  def session(
    self,
    session_class: type[session_lib.SyncSession],
    policy: policies.Policy,
    make_own: Callable[..., Any],
    tell: Tell | None,
  ) -> sessions.Session:
    """Returns the session in which all tasks do steps.

    One in which they wait for each other finds out which of the others are
    lost; see `failure_detector`.

    Args:
      session_class: the class of such a session.
      policy: says what steps wait for.
      make_own: makes variables on ps; see `variables.shared_extended`.
      tell: is told about repeated steps; None without recovery.
    """
    if not policy.waits:
      return sessions.NoSync(self._step_log(make_own, tell) if tell else None)
    session = session_class(
      policy,
      ps_state.SyncState(
        make_own, num_ps=self._cluster.num_ps, num_workers=len(self.tasks)
      ),
      name='',
      worker=lambda: self.index,
      tell=tell,
    )
    others = self.addresses()
    del others[self.tasks[self.index]]
    failure_detector.FailureDetector(
      session,
      lambda: others,
      self.tasks.index,
      timeout_secs=policy.timeout_secs,
    )
    return session

  def _step_log(
    self, make_own: Callable[..., Any], tell: Tell
  ) -> step_log_lib.StepLog:
    """Returns the log of this process' steps, kept on each ps."""
    return step_log_lib.StepLog(
      step_log_lib.rings(make_own, self._cluster.num_ps),
      slots=itertools.repeat(self.index),
      own=str(self.tasks[self.index]),
      tell=tell,
    )
