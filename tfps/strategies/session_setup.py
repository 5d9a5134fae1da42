"""Setup of the session in which the workers of a strategy do steps."""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
import dataclasses
from typing import Any

from tfps.cluster import spec as spec_lib
from tfps.updates import policies
from tfps.updates import sessions
from tfps.updates import step_log as step_log_lib
from tfps.updates.sync import failure_detector
from tfps.updates.sync import ps_state
from tfps.updates.sync import session as session_lib

# Counts repeated steps; see `recovery.events`.
Tell = Callable[..., None]


@dataclasses.dataclass(frozen=True)
class Workers:
  """The workers of a session, as the process that makes it knows them.

  Attributes:
    number: how many there are.
    current: returns the number of the worker for which a thread executes.
    number_of: returns a worker's number.
    others: returns the addresses of the workers that may be lost, but for the
      task of this process.
    slots: numbers of the slots in which this process logs its executions, in
      turn.
    job: name of the job; unique on the ps.
  """

  number: int
  current: Callable[[], int]
  number_of: Callable[[spec_lib.Task], int]
  others: Callable[[], Mapping[spec_lib.Task, str]]
  slots: Iterable[int]
  job: str = ''


def session_of(
  workers: Workers,
  policy: policies.Policy,
  *,
  session_class: type[session_lib.SyncSession],
  make_own: Callable[..., Any],
  num_ps: int,
  own: spec_lib.Task,
  tell: Tell | None,
) -> sessions.Session:
  """Returns the session in which workers do steps.

  One in which they wait for each other finds out which of the others are lost;
  see `failure_detector`.

  Args:
    workers: the workers.
    policy: says what steps wait for.
    session_class: class of a session in which workers wait for each other.
    make_own: makes variables on ps; see `variables.extended`.
    num_ps: number of ps.
    own: task of this process.
    tell: is told about repeated steps; None without recovery.
  """
  if not policy.waits:
    return sessions.NoSync(
      None
      if tell is None
      else step_log_lib.StepLog(
        step_log_lib.rings(make_own, num_ps),
        slots=workers.slots,
        own=str(own),
        tell=tell,
      )
    )
  session = session_class(
    policy,
    ps_state.SyncState(make_own, num_ps=num_ps, num_workers=workers.number),
    name=workers.job,
    worker=workers.current,
    tell=tell,
  )
  failure_detector.FailureDetector(
    session,
    workers.others,
    workers.number_of,
    timeout_secs=policy.timeout_secs,
  )
  return session
