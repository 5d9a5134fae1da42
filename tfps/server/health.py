"""Probes of other tasks' servers, with deadlines and without TensorFlow.

TensorFlow's own calls to a frozen or missing server block without limit, some
of them while holding the interpreter's lock. So tasks are probed before they
are called:

`wait_until_alive(cluster, cluster.tasks('ps'), timeout_secs=60)`
"""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
import dataclasses
import enum
import re
import time
from typing import Any

from google.protobuf import empty_pb2
from google.protobuf import unknown_fields
import grpc

from tfps import errors
from tfps._utils import threads
from tfps._utils import timeouts
from tfps.cluster import spec as spec_lib

_CHANNEL_OPTIONS = (
  ('grpc.enable_http_proxy', 0),
  # A pool of its own: the backoff after a refused connection would fail the
  # next probe of a task that has started meanwhile.
  ('grpc.use_local_subchannel_pool', 1),
)
_MAX_PROBES_AT_ONCE = 32
_DEVICE_NAME = re.compile(r'/job:(\w+)/replica:\d+/task:(\d+)/')


class State(enum.Enum):
  """Result of a probe of a task's address."""

  ALIVE = 'alive'
  HUNG = 'does not answer'
  DEAD = 'unreachable'
  WRONG_TASK = 'another task'


@dataclasses.dataclass(frozen=True)
class Status:
  """The result of one probe.

  Attributes:
    task: the expected task.
    address: the probed 'host:port'.
    state: of the task.
    incarnation: a number that changes when the task restarts; None unless a
      TensorFlow server answered.
    detail: the result as text, such as 'is worker:1, not ps:0'.
    found: the task that answered; None unless a TensorFlow server did.
  """

  task: spec_lib.Task
  address: str
  state: State
  incarnation: int | None = None
  detail: str = ''
  found: spec_lib.Task | None = None

  def __str__(self) -> str:
    return f'{self.task} at {self.address} {self.detail}'


def probe(
  task: spec_lib.Task, address: str, *, timeout_secs: float | None = None
) -> Status:
  """Asks the server at an address for its task.

  Args:
    task: the expected task.
    address: 'host:port' of the server.
    timeout_secs: how long to wait for the answer; None for the default.
  """
  if timeout_secs is None:
    timeout_secs = timeouts.current().probe_secs
  try:
    answer = _get_status(address, timeout_secs=timeout_secs)
    found, incarnation = _identity(answer)
  except grpc.RpcError as error:
    state, detail = _failure(error)
    return Status(task, address, state, detail=detail)
  except ValueError:
    return Status(
      task, address, State.WRONG_TASK, detail='is not a TensorFlow server'
    )
  if found != task:
    detail = f'is {found}, not {task}'
    return Status(task, address, State.WRONG_TASK, incarnation, detail, found)
  return Status(task, address, State.ALIVE, incarnation, 'is alive', found)


def is_alive(
  task: spec_lib.Task, address: str, *, timeout_secs: float | None = None
) -> bool:
  """Returns whether the server at an address answers as a task."""
  status = probe(task, address, timeout_secs=timeout_secs)
  return status.state is State.ALIVE


def probe_all(
  addresses: Mapping[spec_lib.Task, str],
  *,
  timeout_secs: float | None = None,
) -> list[Status]:
  """Probes many tasks at once; the results are in the order of the tasks.

  Args:
    addresses: of the tasks' servers.
    timeout_secs: how long to wait for each answer; None for the default.
  """
  return threads.map_all(
    'tfps-probe',
    lambda at: probe(*at, timeout_secs=timeout_secs),
    addresses.items(),
    at_once=_MAX_PROBES_AT_ONCE,
  )


def may_be_alive(
  addresses: Mapping[spec_lib.Task, str],
) -> set[spec_lib.Task]:
  """Returns the tasks that answer, or are frozen and may thaw."""
  states = (State.ALIVE, State.HUNG)
  return {s.task for s in probe_all(addresses) if s.state in states}


def incarnations(
  addresses: Mapping[spec_lib.Task, str],
) -> dict[spec_lib.Task, int | None]:
  """Returns each task's incarnation; None if it does not answer as it."""
  return {
    status.task: status.incarnation if status.state is State.ALIVE else None
    for status in probe_all(addresses)
  }


def wait_until_alive(
  cluster: spec_lib.Cluster,
  tasks: Iterable[spec_lib.Task],
  *,
  timeout_secs: float,
) -> None:
  """Waits until each task's server answers as that task.

  Args:
    cluster: has the tasks' addresses.
    tasks: the tasks to wait for.
    timeout_secs: how long to wait for all of them together.

  Raises:
    errors.UnreachableError: names each silent task, its address and state.
  """
  deadline = time.monotonic() + timeout_secs
  waiting = list(tasks)
  pause = timeouts.current().poll_secs
  while True:
    statuses = [_probe_by(deadline, cluster, task) for task in waiting]
    silent = [s for s in statuses if s.state is not State.ALIVE]
    if not silent:
      return
    if time.monotonic() + pause > deadline:
      raise errors.UnreachableError(complaint(silent, timeout_secs))
    waiting = [status.task for status in silent]
    time.sleep(pause)
    pause = min(2 * pause, timeouts.current().probe_every_secs)


def _probe_by(
  deadline: float, cluster: spec_lib.Cluster, task: spec_lib.Task
) -> Status:
  left = min(timeouts.current().probe_secs, deadline - time.monotonic())
  return probe(task, cluster.address(task), timeout_secs=max(0.2, left))


def complaint(silent: Iterable[Status], timeout_secs: float) -> str:
  """Returns the error text about tasks that have not answered in time."""
  found = '; '.join(str(status) for status in silent)
  return (
    f'After {timeout_secs:g} seconds: {found}. '
    'Start these tasks, or correct their addresses.'
  )


def _get_status(address: str, *, timeout_secs: float) -> bytes:
  with grpc.insecure_channel(address, options=_CHANNEL_OPTIONS) as channel:
    call: Any = channel.unary_unary('/tensorflow.WorkerService/GetStatus')
    answer: bytes = call(b'', timeout=timeout_secs)
    return answer


def _failure(error: grpc.RpcError) -> tuple[State, str]:
  code = error.code()
  if code is grpc.StatusCode.DEADLINE_EXCEEDED:
    return State.HUNG, 'does not answer'
  if code is grpc.StatusCode.UNAVAILABLE:
    return State.DEAD, 'is unreachable'
  return State.WRONG_TASK, f'is not a TensorFlow server ({code.name})'


def _identity(answer: bytes) -> tuple[spec_lib.Task, int]:
  """Returns the task and incarnation in a GetStatusResponse.

  Its field 1 repeats `DeviceAttributes`, whose field 1 is the device's name
  and whose field 6 is its incarnation.
  """
  for number, device in _fields(answer):
    facts = dict(_fields(device)) if number == 1 else {}
    name = _DEVICE_NAME.match(facts.get(1, b'').decode())
    if name:
      return spec_lib.Task(name[1], int(name[2])), facts.get(6, 0)
  raise ValueError('the answer names no device')


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
  """Yields the fields of a serialized message without its type."""
  parsed = empty_pb2.Empty.FromString(message)
  for field in unknown_fields.UnknownFieldSet(parsed):
    yield field.field_number, field.data
