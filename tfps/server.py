"""A task's server: started, known to be ready, and told when to end.

```
cluster = tfps.resolve_cluster()
if cluster.task.job == 'ps':
  return tfps.serve(cluster)
```

A task that has nothing else to do needs no program: `python -m tfps.server`
takes the same flags and environment as `tfps.resolve_cluster`.
"""

from collections.abc import Iterator
from collections.abc import Sequence
import concurrent.futures
import contextlib
import dataclasses
import errno
import os
import signal
import socket
import sys
import threading
import time
import types
from typing import Any
from typing import NoReturn

from absl import app
from absl import logging

from tfps._compat import lazy_keras

if __name__ == '__main__':
  # A server computes what others have traced: 2 of its 5 seconds would go to
  # Keras.
  lazy_keras.import_tensorflow()

import tensorflow as tf

from tfps import _attendance
from tfps import _mailbox
from tfps import cluster as cluster_lib
from tfps import discovery
from tfps import errors
from tfps import presence
from tfps import probe

ABANDONED_STATUS = 128 + signal.SIGHUP  # the one it worked for is gone

_CHIEF = cluster_lib.Task('chief', 0)
_PORT_RETRY_SECS = 3.0  # a port that was just released may take a moment
_LISTEN_SECS = 0.25
_SPARE_THREADS = 28  # with fewer threads than workers, servers deadlock


class Server:
  """A running TensorFlow server for the cluster's own task.

  The cluster need not know the other tasks, and port 0 takes a free one:
  `Server(Cluster({'ps': {0: 'localhost:0'}, 'worker': {}}, Task('ps', 0)))`.

  TensorFlow cannot stop a server: leaving the context forgets it, and the port
  is free again when the process ends.

  Args:
    cluster: names its own task.
    config: a `tf.compat.v1.ConfigProto`; by default one with threads enough for
      the cluster's workers.

  Raises:
    ValueError: the cluster's own task is not in it.
    errors.ServerStartError: the port is taken, or TensorFlow's own complaint.
  """

  def __init__(
    self, cluster: cluster_lib.Cluster, *, config: Any = None
  ) -> None:
    self.task = _own_task(cluster)
    self._cluster = cluster
    address = cluster.address(self.task)
    wait_for_port(self.task, address)
    try:
      self._server = tf.distribute.Server(
        cluster.spec(),
        job_name=self.task.job,
        task_index=self.task.index,
        config=config or default_config(cluster.num_workers),
      )
    except tf.errors.OpError as error:
      raise errors.ServerStartError(
        f'{self.task} could not start its server at {address}: {error.message}'
      ) from error

  @property
  def target(self) -> str:
    """The session target, such as 'grpc://localhost:2222'."""
    target: str = self._server.target
    return target

  @property
  def address(self) -> str:
    """'host:port' that the server listens on."""
    return self.target.removeprefix('grpc://')

  def presence(self, *, timeout_secs: float = 120.0) -> presence.Presence:
    """For a program of its own that uses the ps, such as classic session code.

    `with server.presence(): ...` tells the ps tasks of this process and, at the
    orderly end, that it is done; see `tfps.presence.Presence`.

    Args:
      timeout_secs: how long to wait for the ps to answer.

    Raises:
      errors.UnreachableError: names the ps that did not.
    """
    probe.wait_until_alive(
      self._cluster, self._cluster.tasks('ps'), timeout_secs=timeout_secs
    )
    return presence.Presence(
      self._cluster,
      self.task,
      self.address,
      chief=self.task == presence.chief_of(self._cluster),
      servers=self._cluster.tasks('ps'),
    )

  def __enter__(self) -> 'Server':
    return self

  def __exit__(self, *exc_info: object) -> None:
    pass


def serve(
  cluster: cluster_lib.Cluster,
  *,
  config: Any = None,
  chief_timeout_secs: float | None = 600.0,
) -> None:
  """Runs the server of a ps or worker task until training is done.

  Returns once the chief has said done and no other client is alive. Otherwise
  the process ends at once, without `atexit`, because TensorFlow's threads go on
  until the very end: with status 143 on SIGTERM, 130 on SIGINT, and 129 when no
  client has been alive for `chief_timeout_secs`.

  Args:
    cluster: names its own task, a ps or a worker.
    config: as for `Server`.
    chief_timeout_secs: how long to stay without a living client, counted from
      the start; None: for ever. The clients are the chief, where the cluster
      has one, and whoever said hello, as this package's strategies do.

  Raises:
    ValueError: the cluster's own task is not one that serves.
    errors.ServerStartError: as for `Server`.
  """
  if _own_task(cluster).job == 'chief':
    raise ValueError(
      f'serve: the task is chief:0 ({cluster.source}), which runs the training '
      'program. Call serve only in ps and worker tasks.'
    )
  with _leave_on_signals(), Server(cluster, config=config) as server:
    if _attend(server, cluster, chief_timeout_secs) is _ABANDONED:
      _say(
        f'{server.task}: no client has been alive for {chief_timeout_secs:g} '
        f'seconds (chief_timeout_secs). Leaving with status {ABANDONED_STATUS}.'
      )
      _leave(ABANDONED_STATUS)
    _say(f'{server.task}: training is done.')


_ABANDONED = _attendance.Verdict.ABANDONED


def default_config(num_workers: int) -> Any:
  """A `ConfigProto` with threads enough for so many workers."""
  num_threads = max(num_workers + _SPARE_THREADS, os.cpu_count() or 1)
  return tf.compat.v1.ConfigProto(inter_op_parallelism_threads=num_threads)


def _own_task(cluster: cluster_lib.Cluster) -> cluster_lib.Task:
  task = cluster.task
  if task is None or task not in cluster.tasks():
    raise ValueError(
      f'{cluster.source}: a server needs a task with an address, and this '
      f'process is {task or "no task"}. Set --job_name and --task_index, or '
      "write Cluster(..., task=Task('ps', 0))."
    )
  return task


def wait_for_port(task: cluster_lib.Task, address: str) -> None:
  """Returns once a task's port is free, which it should be.

  Raises:
    errors.ServerStartError: it is in use; by whom, if that can be told.
  """
  port = int(address.rpartition(':')[2])
  deadline = time.monotonic() + _PORT_RETRY_SECS
  while _is_taken(port):
    if time.monotonic() > deadline:
      raise errors.ServerStartError(
        f'{task} could not start its server: port {port} of {address} is in '
        f'use{_by_whom(task, port)}. End the other process, or give the task '
        'another port.'
      )
    time.sleep(0.1)


def _is_taken(port: int) -> bool:
  # A trial is quieter than TensorFlow's, which logs and leaks when it fails.
  with contextlib.closing(socket.socket(socket.AF_INET)) as trial:
    trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
      trial.bind(('', port))
    except OSError as error:
      return error.errno == errno.EADDRINUSE
  return False


def _by_whom(task: cluster_lib.Task, port: int) -> str:
  status = probe.probe(task, f'localhost:{port}', timeout_secs=1.0)
  alive = status.state is probe.State.ALIVE
  return f' by a server that is {task}, too' if alive else ''


def _attend(
  server: Server,
  cluster: cluster_lib.Cluster,
  timeout_secs: float | None,
) -> _attendance.Verdict:
  """Waits for the end in this thread, so that signals reach it."""
  verdict: concurrent.futures.Future[_attendance.Verdict]
  verdict = concurrent.futures.Future()

  def run() -> None:
    try:
      verdict.set_result(_listen(server, cluster, timeout_secs))
    except Exception as error:
      verdict.set_exception(error)

  threading.Thread(target=run, name='tfps-attend', daemon=True).start()
  return verdict.result()


def _listen(
  server: Server,
  cluster: cluster_lib.Cluster,
  timeout_secs: float | None,
) -> _attendance.Verdict:
  attendance = _attendance.Attendance(timeout_secs)
  if _CHIEF in cluster.tasks():
    attendance.expect(_CHIEF, cluster.address(_CHIEF))
  address = server.address
  with _mailbox.Mailbox(server.task, address, timeout_secs=None) as mailbox:
    mailbox.post(_with_address(cluster, server).tf_config())
    _say(f'{server.task} is ready at {address}.')
    while True:
      for message in mailbox.take():
        attendance.hear(presence.Message.from_json(message))
      verdict = attendance.verdict()
      if verdict:
        return verdict
      time.sleep(_LISTEN_SECS)


def _with_address(
  cluster: cluster_lib.Cluster, server: Server
) -> cluster_lib.Cluster:
  """The cluster with the port that the server found, where it had port 0."""
  job, index = server.task.job, server.task.index
  jobs = {**cluster.jobs, job: {**cluster.jobs[job], index: server.address}}
  return dataclasses.replace(cluster, jobs=jobs)


@contextlib.contextmanager
def _leave_on_signals() -> Iterator[None]:
  """Lets SIGTERM and SIGINT end the process, where handlers can be set."""
  if threading.current_thread() is not threading.main_thread():
    yield
    return
  signals = (signal.SIGTERM, signal.SIGINT)
  previous = {number: signal.signal(number, _on_signal) for number in signals}
  try:
    yield
  finally:
    for number, handler in previous.items():
      signal.signal(number, handler)


def _on_signal(number: int, frame: types.FrameType | None) -> None:
  name = signal.Signals(number).name
  _say(f'Leaving on {name} with status {128 + number}.')
  _leave(128 + number)


def _say(text: str) -> None:
  """Tells whoever runs the task; the log would hide it by default."""
  print(f'tfps: {text}', file=sys.stderr, flush=True)


def _leave(status: int) -> NoReturn:
  # Through the interpreter's end, a server that is busy took seconds to leave
  # and crashed every other time: its threads outlive what they use.
  logging.flush()
  sys.stdout.flush()
  sys.stderr.flush()
  os._exit(status)


def _main(args: Sequence[str]) -> None:
  if len(args) > 1:
    raise app.UsageError(f'{args[1]!r} is no flag. See --help.')
  serve(discovery.resolve_cluster())


if __name__ == '__main__':
  discovery.define_flags()
  logging.set_verbosity(logging.INFO)
  app.run(_main)
