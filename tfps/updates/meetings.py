"""Workers that wait for each other, as those see it who have them execute.

A function that does steps gets the number of the worker that executes it.
"""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import threading
import time
from typing import Any

from absl import logging
import tensorflow as tf

from tfps.updates import board as board_lib
from tfps.updates import courses
from tfps.updates import host_sums
from tfps.updates import pace as pace_lib
from tfps.updates import policies
from tfps.updates import turns as turns_lib

_LOOK_SECS = 0.002

# What this process itself has done on the ps, and with how many numbers.
_CALLS = {
  'start': 2,
  'rest': 1,
  'pause': 1,
  'leave_out': 2,
  'take_in': 1,
  'leave_step': 1,
}

WORKER = tf.TensorSpec([], tf.int64)


class Meetings:
  """Those of a strategy.

  Args:
    policy: how many come.
    board: has the state.
    name: of the job; unique on the ps.
    worker: tells the worker that executes what this thread calls.
    tell: gets a worker, and how many steps may be applied twice because of it.
    host: has the workers of this process' host push together, if they do.

  Attributes:
    makes_one_update: whether a step of all workers makes one update.
  """

  _meeting_class: type[courses.Meeting] = courses.Meeting

  def __init__(
    self,
    policy: policies.Waiting,
    board: board_lib.Board,
    *,
    name: str,
    worker: Callable[[], int],
    tell: Callable[[str, int], object] | None = None,
    host: host_sums.HostSums | None = None,
  ) -> None:
    self.worker = worker
    self._host = host
    self._tell = tell
    self.policy = policy
    self.board = board
    self.name = name
    self.makes_one_update = isinstance(policy, policies.Sync)
    spare = policy.backup_workers if isinstance(policy, policies.Sync) else 0
    self.turns = turns_lib.Turns(board, spare=spare, name=name)
    self.pace: pace_lib.Pace | None = None
    if isinstance(policy, policies.BoundedStaleness):
      self.pace = pace_lib.Pace(board, max_lead=policy.max_lead, name=name)
    # Traced now: a worker that is frozen would hold that up.
    self._functions = {
      name: _function(getattr(self.turns, name), number)
      for name, number in _CALLS.items()
    }
    self._updates_left: Callable[[], int] = _no_end
    self._lock = threading.Lock()
    # What is to be executed; whether it has been begun.
    self._attempts: dict[Attempt, bool] = {}
    self._num_ended = 0
    self._rests = False
    self._at_work: Callable[[], object] = lambda: None

  def start(self) -> None:
    """Begins anew: gradients that have come are dropped, and nobody waits.

    To be called by the chief alone, at first, and once variables are set back.

    Raises:
      tf.errors.OpError: a ps is lost.
    """
    updates = self._updates_left()  # may wait for who needs the lock
    with self._lock:
      self._num_ended = 0
      self._rests = False
      self._call('start', _now(), updates)

  def start_afresh(self) -> None:
    """As `start`, when nothing is being executed, nor to be."""
    with self._lock:
      self._attempts.clear()
    self.start()

  def start_for(self, updates_left: Callable[[], int]) -> None:
    """As `start`, for a number of updates, which is asked for each time."""
    self._updates_left = updates_left
    self.start()

  def end_there(self) -> None:
    """Has the next `start` be for updates without an end."""
    self._updates_left = _no_end

  def rest(self) -> None:
    """Has nobody wait for more than what is to be executed already.

    Until `start`. Meanwhile nothing is to be scheduled.

    Raises:
      tf.errors.OpError: a ps is lost.
    """
    with self._lock:
      self._call('rest', self._num_ended + len(self._attempts))

  def try_to_rest(self, rest: bool) -> None:
    """Has nobody wait for more than what is being executed; or does so again.

    What goes wrong is only logged.
    """
    with self._lock:
      self._rests = rest
      self._tell_last()

  @contextlib.contextmanager
  def paused(self) -> Iterator[None]:
    """Within it no updates are made, whatever is being executed.

    It begins between two steps, of which each may make several.

    Raises:
      tf.errors.OpError: a ps is lost, or a worker that is making one.
    """
    deadline = time.monotonic() + self.policy.timeout_secs
    try:
      while int(self._call('pause', 1)):
        if time.monotonic() > deadline:
          raise tf.errors.DeadlineExceededError(
            None, None, 'An update has not ended.'
          )
        time.sleep(_LOOK_SECS)
      yield
    finally:
      self._call('pause', 0)

  def call_at_work(self, function: Callable[[], object]) -> None:
    """Calls a function each time that something is about to be executed."""
    self._at_work = function

  def take_up(self, attempt: 'Attempt') -> bool:
    """Whether anything is left to do of an attempt, before it is called."""
    del attempt
    return True

  def enter(self, attempt: 'Attempt') -> None:
    """Takes note of what is about to be executed."""
    with self._lock:
      is_new = not self._attempts.get(attempt)
      self._attempts[attempt] = True
      if is_new and self._rests:
        self._tell_last()
    if self._host is not None:
      self._host.begin()
    self._at_work()

  def fail(self, attempt: 'Attempt', worker: int) -> None:
    """Takes note of what has been cut short, and may be begun again."""
    if self._tell is not None and not self.makes_one_update:
      self._tell(f'worker:{worker}', attempt.num_steps)
    with self._lock:
      self._attempts[attempt] = False
      self._try('leave_step', worker)
      if self._rests:
        self._tell_last()

  def leave(self, attempt: 'Attempt') -> None:
    """Takes note of what has been executed, to its end."""
    with self._lock:
      if self._attempts.pop(attempt, None) is not None:
        self._num_ended += 1

  def attempt(self, num_steps: int) -> 'Attempt':
    """For an execution of so many steps."""
    return Attempt(self, num_steps)

  def expect(self, attempt: 'Attempt') -> None:
    """Takes note of what is scheduled."""
    with self._lock:
      self._attempts[attempt] = False

  def _tell_last(self) -> None:
    last = self._num_ended + sum(self._attempts.values()) if self._rests else -1
    self._try('rest', last)

  def total(self) -> board_lib.Point:
    """What all points have counted.

    Raises:
      tf.errors.OpError: a ps is lost.
    """
    return board_lib.Point(*self.board.points.numpy().sum(axis=0).tolist())

  def leave_out(self, worker: int) -> None:
    """Has nobody wait for a worker, until it comes back.

    Raises:
      tf.errors.OpError: a ps is lost.
    """
    self._call('leave_out', worker, board_lib.ABSENT)

  def take_in(self, worker: int) -> None:
    """Has all wait for a worker that is about to begin, though it was done.

    Raises:
      tf.errors.OpError: a ps is lost.
    """
    self._call('take_in', worker)

  def end(self, worker: int) -> None:
    """Has nobody wait for a worker, which is done, until it begins again.

    Once all have said so, who begins next waits for all.

    Raises:
      tf.errors.OpError: a ps is lost.
    """
    if self._host is not None:
      self._host.leave()
    self._call('leave_out', worker, board_lib.DONE)

  def give_up_on(self, worker: int) -> None:
    """Has nobody wait for an update that a worker was to make and cannot.

    Raises:
      tf.errors.OpError: a ps is lost.
    """
    self._call('leave_out', worker, board_lib.PRESENT)

  @property
  def are_executing(self) -> bool:
    """Whether anything is being executed that this process has begun."""
    with self._lock:
      return any(self._attempts.values())

  def versions_awaited(self) -> list[int]:
    """Of the points at which somebody waits.

    Raises:
      tf.errors.OpError: a ps is lost.
    """
    rows = [board_lib.Point(*row) for row in self.board.points.numpy().tolist()]
    return [row.version for row in rows if row.even or row.odd]

  def _try(self, name: str, *args: int) -> None:
    try:
      self._call(name, *args)
    except tf.errors.OpError as error:
      logging.warning('The workers do not know what becomes: %s', error)

  def _call(self, name: str, *args: int) -> Any:
    with tf.device(None):  # not on the worker for which this thread calls
      given = [tf.constant(arg, tf.int64) for arg in args]
      return self._functions[name](*given)

  def around(self, steps: Callable[..., Any]) -> Callable[..., Any]:
    """What a worker is to execute, to be made a function of.

    Args:
      steps: a `tf.function` that gets, besides what it works on, what `meeting`
        takes.

    Returns:
      What gets, in place of these, the number of the worker.
    """

    def execution(*args: Any) -> Any:
      given, worker = args[:-1], args[-1]
      turns = self.turns.begin(worker)
      versions = tf.stack([turn.version for turn in turns])
      before = [versions]
      if self.pace is not None:
        before.append(self.pace.begin(worker))
      with tf.control_dependencies(before):
        result = steps(*given, worker, versions, tf.identity(turns[0].quorum))
      with tf.control_dependencies(tf.nest.flatten(result)):
        self.turns.end(worker)
      return result

    return execution

  def meeting(
    self,
    worker: tf.Tensor,
    versions: tf.Tensor,
    quorum: tf.Tensor,
    *,
    count: Callable[[], object] = lambda: None,
  ) -> courses.Meeting | courses.Walk:
    """For the function that is being traced.

    Args:
      worker: who executes it.
      versions: of all points.
      quorum: of all points.
      count: called where the first point of a step makes its update.
    """
    if self.pace is not None:
      return courses.Walk(self.pace, worker)
    turns = [turns_lib.Turn(v, quorum) for v in tf.unstack(versions)]
    return self._meeting_class(
      self.turns, self.board, self.name, worker, turns, count, self._host
    )


class Attempt:
  """Calls a function with the number of the worker that executes it.

  Args:
    meetings: that it takes part in.
    num_steps: of the function.
  """

  def __init__(self, meetings: Meetings, num_steps: int) -> None:
    self._meetings = meetings
    self.num_steps = num_steps

  @property
  def args(self) -> tuple[tf.Tensor, ...]:
    """What stands for the worker until it is known."""
    return (tf.constant(-1, tf.int64),)

  def note(self) -> None:
    """To be called once it is scheduled."""
    self._meetings.expect(self)

  def __call__(self, function: Callable[..., Any], *args: Any) -> Any:
    """The function's result; None if nothing is left to do."""
    if not self._meetings.take_up(self):
      return None
    number = self._meetings.worker()
    self._meetings.enter(self)
    with tf.device(None):  # on a frozen worker it would hold up this process
      worker = tf.constant(number, tf.int64)
    try:
      result = function(*args[:-1], worker)
    except BaseException:
      self._meetings.fail(self, number)
      raise
    self._meetings.leave(self)
    return result


def _function(call: Callable[..., Any], number: int) -> Any:
  def function(*args: tf.Tensor) -> tf.Tensor | None:
    returned = call(*args)
    return returned if tf.is_tensor(returned) else None

  scalar = tf.TensorSpec([], tf.int64)
  made = tf.function(function, autograph=False)
  return made.get_concrete_function(*[scalar] * number)


def _no_end() -> int:
  return 1 << 50


def _now() -> int:
  """A version later than all that were there before, of whatever process."""
  return time.time_ns() // 1000


def of(strategy: Any) -> Meetings | None:
  """A strategy's; None if its workers do not wait for each other."""
  found: Meetings | None = getattr(strategy, 'meetings', None)
  return found
