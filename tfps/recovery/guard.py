"""Has a coordinator's training go on after the loss of a ps."""

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping
import threading
from typing import Any
from typing import TypeVar

from absl import logging
import tensorflow as tf

from tfps import _deadline
from tfps import _housing
from tfps import _repairs
from tfps import cluster as cluster_lib
from tfps import errors
from tfps import watch as watch_lib
from tfps._compat import failures
from tfps.recovery import config
from tfps.recovery import events
from tfps.recovery import keeper as keeper_lib
from tfps.recovery import replicas as replicas_lib

_Result = TypeVar('_Result')

_HOME_SECS = 2.0  # how often to look whether a guest can go home
_FAREWELL_SECS = 15.0  # how long a task that is to end may be kept
_ASK_SECS = 1.0


class Guard(_repairs.Repairs):
  """Keeps the variables of one strategy, whose only client is this process.

  Args:
    recovery: how.
    housing: of the ps.
    device: of this process.
    greet: tells the servers of this process, but for those that are guests;
      called when some have restarted.

  Attributes:
    events: of lost tasks.

  Raises:
    errors.CheckpointError: the directory cannot be used.
    ValueError: there is one ps only, and it is to have a replica.
  """

  def __init__(
    self,
    recovery: config.Recovery,
    *,
    housing: _housing.Housing,
    device: str,
    greet: Callable[[Collection[cluster_lib.Task]], object],
  ) -> None:
    self.keeper = keeper_lib.Keeper(recovery, device=device)
    self._replicas = replicas_lib.Replicas(recovery, len(housing.addresses))
    self._timeout_secs = recovery.timeout_secs
    self._take_over_secs = recovery.take_over_secs
    self._housing = housing
    self.events = events.Events(recovery.on_event)
    self._greet = greet
    self._handler: failures.FailureHandler | None = None
    self._watch: watch_lib.Watch | None = None
    self._can_go_home: set[cluster_lib.Task] = set()
    self._are_to_leave: set[int] = set()  # ps
    self._have_left = threading.Event()
    self._sends_home = threading.Thread()  # has not begun
    self._stopping = threading.Event()

  def add(self, variable: Any) -> None:
    """Takes note of a new variable, which gets its value of the last cut.

    Raises:
      errors.CheckpointError: the cut has another variable of that name.
      ValueError: it holds strings in shards.
    """
    entry = self.keeper.inventory.add(variable, self.surviving)
    if entry is not None:
      self.keeper.begin(entry)
      self._replicas.add(entry, is_new=True)

  def start(
    self, handler: failures.FailureHandler, watch: watch_lib.Watch
  ) -> None:
    """Repairs what the handler finds lost, and makes cuts from now on.

    Args:
      handler: of the coordinator.
      watch: what the handler finds it by.
    """
    self._watch = watch
    self._stopping = threading.Event()
    handler.repair_with(self, timeout_secs=self._timeout_secs)
    self._handler = handler
    self.keeper.start(handler.gate)

  def surviving(self, function: Callable[[], _Result]) -> _Result:
    """The function's result; it is called again after the loss of a ps."""
    return self._handler.surviving(function) if self._handler else function()

  def do_without(self, task: cluster_lib.Task) -> None:
    """Lets a task end: a worker does what it is at, a ps hands over."""
    handler = self._handler
    if handler is None:
      return
    if task.job == 'worker':
      handler.dismiss(task.index, _FAREWELL_SECS)
    else:
      self._have_left.clear()
      self._are_to_leave = {task.index}
      deadline = _deadline.after(_FAREWELL_SECS)
      while not self._have_left.is_set() and not _deadline.is_over(deadline):
        handler.repair()  # again, if it was at another repair
        self._have_left.wait(_ASK_SECS)
      self._are_to_leave = set()

  def keep(self) -> None:
    """Has a loss from now on take nothing away of what is trained so far.

    Raises:
      tf.errors.OpError: a ps is lost.
    """
    self.keeper.cut_if_possible()

  def save_for_good(self) -> None:
    """Makes a last cut, after which nothing is executed any more."""
    handler = self._handler
    if handler is not None:
      handler.gate.close()
      self.keeper.cut_alone()

  def stop(self) -> None:
    """Makes no more cuts, and repairs nothing; twice is harmless."""
    self._handler = None
    self._stopping.set()
    self.keeper.stop()

  # What the coordinator's workers call.

  def moved(self) -> Mapping[tuple[str, int], str]:
    return {
      (task.job, task.index): address
      for task, address in self._housing.moved.items()
    }

  def prepare(self) -> None:
    self.keeper.cover()

  def replace(self, ps: set[int], lost_secs: float) -> None:
    self._housing.replace(ps, lost_secs, self._take_over_secs)
    self._look_elsewhere()

  def begin(self) -> None:
    can_go_home, self._can_go_home = self._can_go_home, set()
    are_to_leave = set() if self._have_left.is_set() else self._are_to_leave
    if not can_go_home and not are_to_leave:
      return
    try:
      self.keeper.cut_alone()
    except (tf.errors.OpError, errors.CheckpointError) as error:
      logging.warning('Nobody moves: %s', error)
      return
    self._housing.send_home(can_go_home)
    if are_to_leave and self._take_over_secs is not None:
      self._housing.take_over(are_to_leave)
    self._look_elsewhere()
    if are_to_leave:
      self._have_left.set()

  def notice(self, kind: str, workers: set[int]) -> None:
    self.events.tell(kind, [f'worker:{i}' for i in sorted(workers)])

  def rebuild(self, ps: set[int]) -> None:
    self._greet(self._housing.moved)
    self._replicas.renew(self.keeper.inventory.on(ps), ps)
    secs = self.keeper.put_back(ps, self._replicas)
    self.events.tell('back', [f'ps:{i}' for i in sorted(ps)], secs)

  def _look_elsewhere(self) -> None:
    assert self._watch is not None
    for task in self._housing.forget_moves():
      self.events.tell('moved', [str(task)])
    for task, address in self._housing.addresses.items():
      self._watch.move(task, address)
    if self._housing.moved and not self._sends_home.is_alive():
      self._sends_home = threading.Thread(
        target=self._send_home, name='tfps-send-home', daemon=True
      )
      self._sends_home.start()

  def _send_home(self) -> None:
    """Has guests go home when they can."""
    while not self._stopping.wait(_HOME_SECS):
      handler = self._handler
      self._can_go_home = self._housing.back_home()
      if self._can_go_home and handler is not None:
        handler.repair()
