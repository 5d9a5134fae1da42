"""Connection of a process that trains to the servers of its cluster."""

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
import os

from absl import logging
import tensorflow as tf

from tfps import errors
from tfps._compat import earlier_objects
from tfps._compat import functions
from tfps._compat import server_def
from tfps._compat import side_executor
from tfps._compat import strategy as compat
from tfps._utils import deadlines
from tfps.cluster import spec as spec_lib
from tfps.server import connection
from tfps.server import fencing
from tfps.server import local_pool
from tfps.server import ps_addresses
from tfps.server import registration as registration_lib
from tfps.server import server as server_lib

# If set, operations on other tasks are sent in order, but calls return before
# their operations are done, and functions overtake them.
_STREAMING = 'TF_ENABLE_EAGER_CLIENT_STREAMING_ENQUEUE'


def trainer(cluster: spec_lib.Cluster) -> spec_lib.Task:
  """Returns the task of this process, which trains.

  Args:
    cluster: of this process.

  Raises:
    ValueError: it is not a chief or worker of the cluster.
  """
  task = cluster.task
  if task is None or task not in cluster.tasks() or task.job == 'ps':
    raise ValueError(
      f'{cluster.source}: BetweenGraphStrategy is for chief and workers that '
      f'are in the cluster, and this process is {task or "no task"}. Call '
      'tfps.serve in ps tasks, and tfps.evaluate_checkpoints in an evaluator.'
    )
  cluster.check_has_ps()
  return task


def connect(
  cluster: spec_lib.Cluster,
  task: spec_lib.Task,
  address_book: ps_addresses.PsAddressBook,
  timeout_secs: float,
  *,
  listens: bool,
) -> tuple[registration_lib.Registration, fencing.Fence]:
  """Makes a between-graph worker a client of the ps, and starts its own server.

  Args:
    cluster: lists the ps and this process.
    task: of this process.
    address_book: of the ps, including hosted ones.
    timeout_secs: how long to wait for the ps to answer.
    listens: as for `Registration`.

  Returns:
    The registration with the ps, and the fence against other processes of the
    same task.

  Raises:
    errors.UnreachableError: names the ps that did not answer in time.
    errors.ClusterMismatchError: a ps has another cluster specification.
    errors.ServerStartError: this task's port is in use.
  """
  address = cluster.address(task)
  presence = register(
    cluster,
    task,
    address,
    address_book,
    timeout_secs,
    is_chief=task == registration_lib.chief_of(cluster),
    listens=listens,
  )
  elsewhere = _elsewhere(cluster, cluster.tasks('ps'))
  is_own = compat.is_own_address(task.job, address, index=task.index)
  spec = cluster.spec()
  if elsewhere:
    if not is_own:
      server_lib.wait_for_port(task, address)
    spec = _ps_and_self(cluster, task, address_book)
  # As in TensorFlow's own strategy: functions must see earlier assignments.
  os.environ[_STREAMING] = 'False'
  prepare()
  if elsewhere and is_own:  # this process was this task before
    server_def.become(spec)
  fence = fencing.Fence(
    task, lambda: {ps: address_book.addresses[ps] for ps in elsewhere}
  )
  join(
    lambda: tf.config.experimental_connect_to_cluster(
      spec, job_name=task.job, task_index=task.index, protocol='grpc'
    ),
    fence,
  )
  address_book.keep_homes()
  return presence, fence


def register(
  cluster: spec_lib.Cluster,
  task: spec_lib.Task,
  address: str,
  address_book: ps_addresses.PsAddressBook,
  timeout_secs: float,
  *,
  is_chief: bool,
  listens: bool,
  workers: Collection[spec_lib.Task] = (),
) -> registration_lib.Registration:
  """Waits until all servers answer, and registers this process with them.

  Args:
    cluster: lists the ps, the workers and, if it is known, this process.
    task: of this process.
    address: of this process.
    address_book: of the ps, including hosted ones.
    timeout_secs: how long to wait.
    is_chief: whether this process is the chief.
    listens: as for `Registration`.
    workers: those that must answer, too.

  Raises:
    errors.UnreachableError: names each silent task, its address and state.
    errors.ClusterMismatchError: a server has another cluster specification.
  """
  presence = registration_lib.Registration(
    cluster,
    task,
    address,
    chief=is_chief,
    servers=_elsewhere(cluster, (*cluster.tasks('ps'), *workers)),
    listens=listens,
    homes=lambda: address_book.new_homes,
  )
  deadline = deadlines.after(timeout_secs)
  while True:
    address_book.wait_until_served(
      deadlines.seconds_until(deadline) or 0.0, workers
    )
    try:
      presence.start(without=address_book.hosted)
      return presence
    except errors.UnreachableError as error:  # lost since the wait
      if deadlines.is_over(deadline):
        raise
      logging.warning('%s', error)


def prepare() -> None:
  """Prepares this process for a new connection, which ends that of before."""
  connection.stop_all()
  compat.let_threads_sleep()
  earlier_objects.take_over()
  functions.remove_late()


def join(connect: Callable[[], object], fence: fencing.Fence) -> None:
  """Connects this process, and fences off other processes of its task.

  Args:
    connect: connects it, while nothing else is executed.
    fence: the fence of this process.
  """
  with side_executor.drained_to_connect():
    connect()
  server_def.forget_losses()
  fence.take()


def at_home(
  address_book: ps_addresses.PsAddressBook,
) -> dict[spec_lib.Task, str]:
  """Returns the addresses of the ps that are neither hosted nor local."""
  return {
    task: address
    for task, address in address_book.addresses.items()
    if task not in address_book.hosted and not local_pool.is_here(address)
  }


def _elsewhere(
  cluster: spec_lib.Cluster, tasks: Iterable[spec_lib.Task]
) -> list[spec_lib.Task]:
  """Returns the tasks that are other processes."""
  return [
    task for task in tasks if not local_pool.is_here(cluster.address(task))
  ]


def _ps_and_self(
  cluster: spec_lib.Cluster,
  task: spec_lib.Task,
  address_book: ps_addresses.PsAddressBook,
) -> tf.train.ClusterSpec:
  # Without other workers: this one must not wait for them.
  jobs = {
    'ps': {ps.index: address for ps, address in address_book.addresses.items()},
    task.job: {task.index: cluster.address(task)},
  }
  return tf.train.ClusterSpec(jobs)
