"""Mailbox on a task's server: messages to the task, and notices to others.

All clients of a server share its resources, so a queue and some strings with
fixed names need no further port or process. They are accessed by sessions,
which involve no other task and no eager context.
"""

from collections.abc import Iterator
import contextlib
import math
import threading

import tensorflow as tf

from tfps._compat import collectives
from tfps._utils import threads
from tfps._utils import timeouts
from tfps.server import environment

_QUEUE_NAME = 'tfps_mailbox'
_MAX_CLOSED_AT_ONCE = 32

# The owner as its sessions name it.
_JOB = 'mailbox'
_DEVICE = f'/job:{_JOB}/task:0/device:CPU:0'

# Notices of a task: its cluster specification, and its hosted tasks.
CLUSTER = 'tfps_notice'
HOSTED = 'tfps_hosted'


class Mailbox:
  """A connection to one task's mailbox; a context manager.

  A call that gets no answer in time raises a `tf.errors.OpError`. If the server
  may be dead or frozen, probe it first, which fails sooner.

  Args:
    address: where the owner's server listens.
    timeout_secs: the limit of each call; by default that of all such calls, and
      `math.inf` for none.
  """

  def __init__(
    self, address: str, *, timeout_secs: float | None = None
  ) -> None:
    # The first connection of most clients; later, gRPC's options are not read.
    environment.set_default()
    with tf.Graph().as_default() as graph, tf.device(_DEVICE):
      self._build()
    limit = (
      timeouts.current().call_secs if timeout_secs is None else timeout_secs
    )
    # A session uses the connections of its server, which are deleted when the
    # server gets to know another cluster: the next call, or the end of the
    # session, would crash the server's process. With a cluster of its own, here
    # of the owner only, a session has connections of its own.
    config = tf.compat.v1.ConfigProto(
      cluster_def=tf.train.ClusterSpec({_JOB: [address]}).as_cluster_def(),
      operation_timeout_in_ms=0 if limit == math.inf else int(1000 * limit),
    )
    config.experimental.share_session_state_in_clusterspec_propagation = True
    self._session = tf.compat.v1.Session(
      f'grpc://{address}', graph=graph, config=config
    )

  def _build(self) -> None:
    self._text = tf.compat.v1.placeholder(tf.string, shape=[])
    queue = tf.queue.FIFOQueue(
      -1, [tf.string], shapes=[()], shared_name=_QUEUE_NAME
    )
    self._put = queue.enqueue(self._text)
    self._take = queue.dequeue_many(queue.size())
    self._boards: dict[str, _Board] = {}

  def put(self, message: str) -> None:
    """Adds a message to the task's queue."""
    self._session.run(self._put, {self._text: message})

  def take(self) -> list[str]:
    """Removes and returns all messages, oldest first."""
    return [message.decode() for message in self._session.run(self._take)]

  def post(self, notice: str, about: str = CLUSTER) -> None:
    """Replaces a notice of the task.

    Args:
      notice: the new text.
      about: the name of the notice.
    """
    self._session.run(self._board(about).post, {self._text: notice})

  def read(self, about: str = CLUSTER) -> str | None:
    """Returns a notice of the task, or None if none was posted."""
    board = self._board(about)
    # A notice is replaced, but never removed, so that this is asked once.
    board.was_used = board.was_used or self._session.run(board.is_used)
    if not board.was_used:
      return None
    notice: bytes = self._session.run(board.read)
    return notice.decode()

  def _board(self, about: str) -> '_Board':
    if about not in self._boards:
      with self._session.graph.as_default(), tf.device(_DEVICE):
        self._boards[about] = _Board(about, self._text)
    return self._boards[about]

  def close(self) -> None:
    """Closes the connection; the mailbox keeps its contents."""
    self._session.close()

  def abandon(self) -> None:
    """Lets go of a connection to a server that may be dead or frozen."""
    collectives.abandon(self._session)

  def __enter__(self) -> 'Mailbox':
    return self

  def __exit__(self, *exc_info: object) -> None:
    self.close()


class Mailboxes:
  """Connections to the mailboxes of several tasks, which are kept open.

  Opening one takes longer than the calls of an observer. A connection is used
  by one thread at a time, and belongs to one life of its server.
  """

  def __init__(self) -> None:
    self._lock = threading.Lock()
    self._kept: dict[str, tuple[int | None, Mailbox]] = {}

  @contextlib.contextmanager
  def at(
    self, address: str, incarnation: int | None, timeout_secs: float
  ) -> Iterator[Mailbox]:
    """Connects to a mailbox within a context; after an error anew.

    Args:
      address: where the owner's server listens.
      incarnation: the number of the server's life.
      timeout_secs: as for `Mailbox`, of a new connection.
    """
    with self._lock:
      known, kept = self._kept.pop(address, (None, None))
    if kept is not None and known != incarnation:
      kept.abandon()
      kept = None
    mailbox = kept or Mailbox(address, timeout_secs=timeout_secs)
    try:
      yield mailbox
    except BaseException:
      mailbox.abandon()
      raise
    with self._lock:
      _, other = self._kept.get(address, (None, None))
      self._kept[address] = incarnation, mailbox
    if other is not None:
      other.abandon()

  def close(self) -> None:
    """Closes all connections; lets go of those whose server does not answer."""

    def close(mailbox: Mailbox) -> None:
      try:
        mailbox.close()
      except tf.errors.OpError:
        mailbox.abandon()

    threads.map_all(
      'tfps-close', close, self._taken(), at_once=_MAX_CLOSED_AT_ONCE
    )

  def abandon(self) -> None:
    """Lets go of all connections; servers may be dead or frozen."""
    for mailbox in self._taken():
      mailbox.abandon()

  def _taken(self) -> list[Mailbox]:
    with self._lock:
      kept = [mailbox for _, mailbox in self._kept.values()]
      self._kept.clear()
      return kept


def take_own(device: str) -> list[str]:
  """Takes the messages of this process' own mailbox, without a session.

  Args:
    device: a CPU of this process, in the cluster.

  Returns:
    All messages, oldest first.
  """
  with tf.device(device):
    queue = tf.raw_ops.FIFOQueueV2(
      component_types=[tf.string], shapes=[()], shared_name=_QUEUE_NAME
    )
    (messages,) = tf.raw_ops.QueueDequeueManyV2(
      handle=queue,
      n=tf.raw_ops.QueueSizeV2(handle=queue),
      component_types=[tf.string],
    )
  return [message.decode() for message in messages.numpy()]


def post_own(device: str, notice: str, about: str) -> None:
  """Replaces a notice on this process' own server; see `take_own`.

  Args:
    device: a CPU of this process, in the cluster.
    notice: the new text.
    about: the name of the notice.
  """
  with tf.device(device):
    tf.raw_ops.AssignVariableOp(
      resource=_handle(about), value=tf.constant(notice)
    )


def read_own(device: str, about: str) -> str | None:
  """Returns a notice on this process' own server, or None; see `take_own`.

  Args:
    device: a CPU of this process, in the cluster.
    about: the name of the notice.
  """
  with tf.device(device):
    handle = _handle(about)
    if not tf.raw_ops.VarIsInitializedOp(resource=handle):
      return None
    notice = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.string)
  return bytes(notice.numpy()).decode()


class _Board:
  """Operations on a named string of the server."""

  def __init__(self, name: str, text: tf.Tensor) -> None:
    handle = _handle(name)
    self.post = tf.raw_ops.AssignVariableOp(resource=handle, value=text)
    self.is_used = tf.raw_ops.VarIsInitializedOp(resource=handle)
    self.was_used = False  # at the last look
    self.read = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.string)


def _handle(name: str) -> tf.Tensor:
  return tf.raw_ops.VarHandleOp(dtype=tf.string, shape=[], shared_name=name)
