"""Server of a task: start, readiness and end.

```
cluster = tfps.resolve_cluster()
if cluster.task.job == 'ps':
  return tfps.serve(cluster)
```

A task that has nothing else to do needs no program: `python -m tfps.server`
takes the same flags and environment as `tfps.resolve_cluster`.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import errno
import gc
import os
import signal
import socket
import threading
import time
import types
from typing import Any
from typing import NoReturn

from absl import app
import grpc

from tfps._compat import lazy_keras

if __name__ == '__main__':
  # A server executes what clients have traced and needs no Keras, whose import
  # would take 2 of its 5 seconds.
  lazy_keras.import_tensorflow()

import tensorflow as tf

from tfps import errors
from tfps._compat import eager_contexts
from tfps._utils import signals
from tfps._utils import threads
from tfps._utils import timeouts
from tfps.cluster import resolver
from tfps.cluster import spec as spec_lib
from tfps.monitor import endpoint
from tfps.security import doors
from tfps.server import client_registry
from tfps.server import environment
from tfps.server import gate as gate_lib
from tfps.server import health
from tfps.server import hosted_ps
from tfps.server import registration
from tfps.server import row_groups
from tfps.server import row_stores
from tfps.server import service as service_lib

ABANDONED_STATUS = 128 + signal.SIGHUP  # no client is left

_SPARE_THREADS = 28  # with fewer threads than workers, servers deadlock


class Server:
  """A running TensorFlow server for the cluster's own task.

  The cluster need not know the other tasks, and port 0 takes a free one:
  `Server(Cluster({'ps': {0: 'localhost:0'}, 'worker': {}}, Task('ps', 0)))`.

  TensorFlow cannot stop a server: leaving the context forgets it, and the port
  is free again when the process ends.

  Args:
    cluster: names its own task.
    config: a `tf.compat.v1.ConfigProto`; by default one with enough threads for
      the cluster's workers and, for a ps, without GPUs.

  Raises:
    ValueError: the cluster's own task is not in it.
    errors.ServerStartError: the port is in use, or TensorFlow raised an error.
  """

  def __init__(self, cluster: spec_lib.Cluster, *, config: Any = None) -> None:
    self.task = _own_task(cluster)
    self.config = config or default_config(
      cluster.num_workers, uses_gpus=self.task.job != 'ps'
    )
    self._cluster = cluster
    address = cluster.address(self.task)
    wait_for_port(self.task, address)
    environment.set_default()
    threads.expect_many()
    row_groups.offer()
    row_stores.offer()
    with gate_lib.Gate(address) as gate:
      try:
        self._server = gate.behind(self._make)
      except tf.errors.OpError as error:
        raise errors.ServerStartError(
          f'{self.task} could not start its server at {address}: '
          f'{error.message}. Correct the address, or the config.'
        ) from error
      self._start(gate)

  def _make(self) -> Any:
    return tf.distribute.Server(
      self._cluster.spec(),
      job_name=self.task.job,
      task_index=self.task.index,
      config=self.config,
      start=False,
    )

  def _start(self, gate: gate_lib.Gate) -> None:
    """Starts the server, which then has the context of its first client."""
    try:
      eager_contexts.open_first(
        gate.back_door(self.address),
        job=self.task.job,
        index=self.task.index,
        start=self._server.start,
        timeout_secs=timeouts.current().handshake_secs,
      )
    except grpc.RpcError as error:
      raise errors.ServerStartError(
        f'{self.task} started its server at {self.address}, which does not '
        f'answer this process: {error.code().name}, {error.details()}. Give an '
        'address at which this host can be reached.'
      ) from error

  @property
  def target(self) -> str:
    """The session target, such as 'grpc://localhost:2222'."""
    target: str = self._server.target
    return target

  @property
  def address(self) -> str:
    """The server's 'host:port'."""
    return self.target.removeprefix('grpc://')

  def presence(
    self, *, timeout_secs: float = 120.0
  ) -> registration.Registration:
    """Makes a registration with the ps, as classic session code needs it.

    `with server.presence(): ...` registers this process with the ps and, at the
    orderly end, tells them that it is done.

    Args:
      timeout_secs: how long to wait for the ps to answer.

    Returns:
      A `tfps.server.registration.Registration`, a context manager.

    Raises:
      errors.UnreachableError: names the ps that did not answer.
    """
    health.wait_until_alive(
      self._cluster, self._cluster.tasks('ps'), timeout_secs=timeout_secs
    )
    return registration.Registration(
      self._cluster,
      self.task,
      self.address,
      chief=self.task == registration.chief_of(self._cluster),
      servers=self._cluster.tasks('ps'),
    )

  def __enter__(self) -> 'Server':
    return self

  def __exit__(self, *exc_info: object) -> None:
    pass


def serve(
  cluster: spec_lib.Cluster,
  *,
  config: Any = None,
  chief_timeout_secs: float | None = 600.0,
  grace_secs: float = 20.0,
) -> None:
  """Runs the server of a ps or worker task until training is done.

  Returns once the chief has said done and no other client is alive. Otherwise
  the process ends at once, without `atexit`, because TensorFlow's threads run
  until its end: with status 143 on SIGTERM, 130 on SIGINT, and 129 when no
  client has been alive for `chief_timeout_secs`.

  Args:
    cluster: names its own task, a ps or a worker.
    config: as for `Server`.
    chief_timeout_secs: how long to stay without a living client, counted from
      the start; None: without limit. The clients are the chief, if the cluster
      has one, and the processes that registered, as strategies do.
    grace_secs: how long clients may take to release this task on SIGTERM; a
      second SIGTERM ends the process at once, unless a supervisor repeats it.

  Raises:
    ValueError: the cluster's own task is not one that serves.
    errors.ServerStartError: as for `Server`.
  """
  if cluster.task is not None and cluster.task.job == 'evaluator':
    raise ValueError(
      f'serve: the task is {cluster.task} ({cluster.source}), which is no part '
      'of the cluster and has no server. Call tfps.evaluate_checkpoints in it.'
    )
  if _own_task(cluster).job == 'chief':
    raise ValueError(
      f'serve: the task is chief:0 ({cluster.source}), which runs the training '
      'program. Call serve only in ps and worker tasks.'
    )
  endpoint.begin(_own_task(cluster), is_chief=False)
  with (
    _leaving_on_signals() as handler,
    Server(cluster, config=config) as server,
  ):
    service = service_lib.Service(
      server.task,
      server.address,
      cluster,
      hosted_ps.HostedTasks(lambda task: _start_hosted(task, server)),
      timeout_secs=chief_timeout_secs,
      grace_secs=grace_secs,
    )
    handler.on_first_sigterm = service.ask_to_leave
    gc.freeze()  # the process would look through it for seconds as it ends
    verdict = service.run()
    if verdict is client_registry.Verdict.ABANDONED:
      signals.tell_user(
        f'{server.task}: no client has been alive for {chief_timeout_secs:g} '
        f'seconds (chief_timeout_secs). Leaving with status {ABANDONED_STATUS}.'
      )
      signals.exit_now(ABANDONED_STATUS)
    if verdict is client_registry.Verdict.DISMISSED:
      _leave_on(signal.SIGTERM)
    signals.tell_user(f'{server.task}: training is done.')


def default_config(num_workers: int, *, uses_gpus: bool = True) -> Any:
  """Returns a `ConfigProto` with enough threads for so many workers.

  Most threads wait. They sleep meanwhile; by default they would spin, and take
  time from threads that have work.

  Args:
    num_workers: number of workers.
    uses_gpus: whether the server has the GPUs that its process sees. Without,
      it takes none of their memory.
  """
  num_threads = max(num_workers + _SPARE_THREADS, os.cpu_count() or 1)
  config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=num_threads)
  config.experimental.disable_thread_spinning = True
  if not uses_gpus:
    config.device_count['GPU'] = 0
  return config


def _own_task(cluster: spec_lib.Cluster) -> spec_lib.Task:
  task = cluster.task
  if task is None or task not in cluster.tasks():
    raise ValueError(
      f'{cluster.source}: a server needs a task with an address, and this '
      f'process is {task or "no task"}. Set --job_name and --task_index, or '
      "write Cluster(..., task=Task('ps', 0))."
    )
  return task


def wait_for_port(task: spec_lib.Task, address: str) -> None:
  """Waits briefly until a task's port is free.

  Args:
    task: for the error message.
    address: with the port.

  Raises:
    errors.ServerStartError: the port is in use; names the user, if known.
  """
  port = int(address.rpartition(':')[2])
  deadline = time.monotonic() + timeouts.current().port_retry_secs
  while _is_taken(port):
    if time.monotonic() > deadline:
      raise errors.ServerStartError(
        f'{task} could not start its server: port {port} of {address} is in '
        f'use{_by_whom(task, port)}. End the other process, or give the task '
        'another port.'
      )
    time.sleep(timeouts.current().poll_secs)


def _is_taken(port: int) -> bool:
  # A trial is quieter than TensorFlow's, which logs and leaks when it fails.
  with contextlib.closing(socket.socket(socket.AF_INET)) as trial:
    trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if os.environ.get(doors.REUSE_PORT) in ('1', 'true'):
      trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
      trial.bind(('', port))
    except OSError as error:
      return error.errno == errno.EADDRINUSE
  return False


def _by_whom(task: spec_lib.Task, port: int) -> str:
  alive = health.is_alive(task, f'localhost:{port}')
  return f' by a server that is {task}, too' if alive else ''


def _start_hosted(task: spec_lib.Task, host: Server) -> str:
  """Starts a lost task's server in its host's process; returns its address."""
  jobs = {'ps': {}, 'worker': {}, task.job: {task.index: 'localhost:0'}}
  hosted = Server(spec_lib.Cluster(jobs, task), config=host.config)
  port = hosted.address.rpartition(':')[2]
  address = f'{host.address.rpartition(":")[0]}:{port}'
  signals.tell_user(f'{host.task} serves {task}, too, at {address}.')
  return address


class _Signals:
  """Ends the process on SIGTERM and SIGINT.

  Attributes:
    on_first_sigterm: called on the first SIGTERM, instead of ending at once.
  """

  on_first_sigterm: Callable[[], object] | None = None
  _is_leaving = False

  def __call__(self, number: int, frame: types.FrameType | None) -> None:
    function, self.on_first_sigterm = self.on_first_sigterm, None
    if function is not None and number == signal.SIGTERM:
      self._is_leaving = True
      function()
    elif number != signal.SIGTERM or self._ends_at_once():
      _leave_on(signal.Signals(number))

  def _ends_at_once(self) -> bool:
    return signals.ends_at_once() or not self._is_leaving


@contextlib.contextmanager
def _leaving_on_signals() -> Iterator[_Signals]:
  """Makes SIGTERM and SIGINT end the process, if this is the main thread."""
  handler = _Signals()
  if threading.current_thread() is not threading.main_thread():
    yield handler
    return
  numbers = (signal.SIGTERM, signal.SIGINT)
  previous = {number: signal.signal(number, handler) for number in numbers}
  try:
    yield handler
  finally:
    for number, earlier in previous.items():
      signal.signal(number, earlier)


def _leave_on(number: signal.Signals) -> NoReturn:
  signals.tell_user(f'Leaving on {number.name} with status {128 + number}.')
  signals.exit_now(128 + number)


def main(args: Sequence[str]) -> None:
  """Serves the task of the flags or environment until training is done."""
  if len(args) > 1:
    raise app.UsageError(f'{args[1]!r} is no flag. Leave it out; see --help.')
  serve(resolver.resolve_cluster())
  signals.exit_now(0)
