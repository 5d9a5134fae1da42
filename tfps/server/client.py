"""How a process that trains by itself becomes a client of the ps."""

from collections.abc import Collection
import os

from absl import logging
import tensorflow as tf

from tfps import errors
from tfps._compat import server_def
from tfps._compat import side_executor
from tfps._compat import strategy as compat
from tfps._utils import deadlines
from tfps.cluster import spec as spec_lib
from tfps.server import connection
from tfps.server import environment
from tfps.server import fencing
from tfps.server import local_pool
from tfps.server import ps_addresses
from tfps.server import registration as registration_lib
from tfps.server import server as server_lib

# Whether operations on other tasks go to them one after another, while a call
# returns before its operation is done, and functions overtake them.
_STREAMING = 'TF_ENABLE_EAGER_CLIENT_STREAMING_ENQUEUE'


def trainer(cluster: spec_lib.Cluster) -> spec_lib.Task:
  """The task of this process.

  Raises:
    ValueError: it is no chief or worker.
  """
  task = cluster.task
  if task is None or task not in cluster.tasks() or task.job == 'ps':
    raise ValueError(
      f'{cluster.source}: BetweenGraphStrategy is for chief and workers that '
      f'are in the cluster, and this process is {task or "no task"}. Call '
      'tfps.serve in ps tasks.'
    )
  return task


def connect(
  cluster: spec_lib.Cluster,
  task: spec_lib.Task,
  address_book: ps_addresses.PsAddressBook,
  timeout_secs: float,
  *,
  listens: bool,
) -> tuple[registration_lib.Registration, fencing.Fence]:
  """Makes this process a client of the ps, and starts its own server.

  Args:
    cluster: the ps and this process are in it.
    task: of this process.
    address_book: of the ps; those that are guests of others are found there.
    timeout_secs: how long to wait for the ps to answer.
    listens: as for `presence.Presence`.

  Returns:
    What tells the ps of this process, and what says that no other is the task.

  Raises:
    errors.UnreachableError: names the ps that did not answer in time.
    errors.ClusterMismatchError: a ps holds another idea of the cluster.
    errors.ServerStartError: this task's port is taken.
  """
  elsewhere = [
    ps
    for ps in cluster.tasks('ps')
    if not local_pool.is_here(cluster.address(ps))
  ]
  presence = registration_lib.Registration(
    cluster,
    task,
    cluster.address(task),
    chief=task == registration_lib.chief_of(cluster),
    servers=elsewhere,
    listens=listens,
  )
  greet(presence, address_book, timeout_secs)
  address = cluster.address(task)
  is_own = compat.is_own_address(task.job, address, index=task.index)
  spec = cluster.spec()
  if elsewhere:
    if not is_own:
      server_lib.wait_for_port(task, address)
    spec = _ps_and_self(cluster, task, address_book)
  connection.end()
  environment.set_default()
  # As TensorFlow's own strategy has it: a function is to see what was assigned.
  os.environ[_STREAMING] = 'False'
  compat.let_threads_sleep()
  if elsewhere and is_own:  # as this process was this task before
    server_def.become(spec)
  with side_executor.drained_to_connect():
    tf.config.experimental_connect_to_cluster(
      spec, job_name=task.job, task_index=task.index, protocol='grpc'
    )
  server_def.forget_losses()
  fence = fencing.Fence(
    task, lambda: {ps: address_book.addresses[ps] for ps in elsewhere}
  )
  fence.take()
  return presence, fence


def greet(
  presence: registration_lib.Registration,
  address_book: ps_addresses.PsAddressBook,
  timeout_secs: float,
  workers: Collection[spec_lib.Task] = (),
) -> None:
  """Returns once all servers answer and know of this process.

  Args:
    presence: of this process.
    address_book: of the ps.
    timeout_secs: how long to wait.
    workers: those that are to answer, too.

  Raises:
    errors.UnreachableError: names each silent task, its address and state.
    errors.ClusterMismatchError: a server holds another idea of the cluster.
  """
  deadline = deadlines.after(timeout_secs)
  while True:
    address_book.settle(deadlines.seconds_until(deadline) or 0.0, workers)
    try:
      return presence.start(without=address_book.moved)
    except errors.UnreachableError as error:  # since then
      if deadlines.is_over(deadline):
        raise
      logging.warning('%s', error)


def at_home(
  address_book: ps_addresses.PsAddressBook,
) -> dict[spec_lib.Task, str]:
  """The ps that are in processes of their own, with their addresses."""
  return {
    task: address
    for task, address in address_book.addresses.items()
    if task not in address_book.moved and not local_pool.is_here(address)
  }


def _ps_and_self(
  cluster: spec_lib.Cluster,
  task: spec_lib.Task,
  address_book: ps_addresses.PsAddressBook,
) -> tf.train.ClusterSpec:
  # Without the other workers, which this one neither needs nor waits for.
  jobs = {
    'ps': {ps.index: address for ps, address in address_book.addresses.items()},
    task.job: {task.index: cluster.address(task)},
  }
  return tf.train.ClusterSpec(jobs)
