"""Cluster and membership of a HybridStrategy, checked."""

import time
from typing import Any

import tensorflow as tf

from tfps import errors
from tfps.cluster import spec as spec_lib
from tfps.recovery import client_recovery
from tfps.security import enclosure
from tfps.server import health
from tfps.updates.allreduce import membership_table as membership_table_lib
from tfps.variables import extended as extended_lib


def check_reachable(cluster: spec_lib.Cluster) -> None:
  """Checks that workers can average gradients; ps see each other anyway.

  Args:
    cluster: of the workers.

  Raises:
    ValueError: this process is in an enclosure, and there are other workers.
  """
  number = len([task for task in cluster.tasks() if task.job != 'ps'])
  if number > 1 and enclosure.is_within():
    raise ValueError(
      f'{cluster.source}: a HybridStrategy of {number} workers averages '
      'gradients at ports that no door of an enclosure leads to. Take an '
      'AllReduceStrategy or, to have tables on ps, a BetweenGraphStrategy with '
      'updates=tfps.updates.Sync().'
    )


def check_ps(
  cluster: spec_lib.Cluster, task: spec_lib.Task, error: tf.errors.OpError
) -> None:
  """Checks that no ps is lost, which nothing recovers from.

  Args:
    cluster: has the ps.
    task: task of this process.
    error: what a step has raised.

  Raises:
    errors.UnreachableError: names the ps that are lost.
  """
  addresses = {ps: cluster.address(ps) for ps in cluster.tasks('ps')}
  lost = [
    status
    for status in health.probe_all(addresses)
    if status.state is not health.State.ALIVE
  ]
  if lost:
    raise errors.UnreachableError(
      f'{task} cannot continue: {"; ".join(map(str, lost))}. Restart all '
      'tasks; training continues from its checkpoint.'
    ) from error


def membership_table(
  extended: extended_lib.Extended,
  guard: client_recovery.ClientRecovery | None,
  num_workers: int,
) -> membership_table_lib.MembershipTable:
  """Returns the table of the workers that train together.

  Args:
    extended: makes its variables on ps.
    guard: recovers from lost ps; None without a `Recovery`.
    num_workers: number of workers of the cluster.
  """
  if guard is None:
    return membership_table_lib.MembershipTable(extended.make_own, num_workers)

  def make(*args: Any) -> Any:
    variable = extended.make_own(*args, is_saved=False)
    guard.add_unsaved(variable)
    return variable

  return membership_table_lib.MembershipTable(
    make,
    num_workers,
    first=_now,
    has_begun=guard.begins_with_snapshot,
    check_ps=guard.check_ps,
  )


def _now() -> int:
  """Returns a number above those of all earlier rounds."""
  return time.time_ns() // 1000
