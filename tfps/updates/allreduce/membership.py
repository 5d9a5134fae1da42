"""Membership of this worker in a group whose generations `generations` states.

When a generation begins, all members copy the variables of the worker whose
variables contain most steps. From then on they are equal before each step.
"""

from collections.abc import Callable
from collections.abc import Sequence
import dataclasses
import threading
import time
from typing import Any

from absl import logging
import numpy as np
import tensorflow as tf

from tfps import errors
from tfps._compat import collectives as compat
from tfps._utils import deadlines
from tfps._utils import timeouts
from tfps.server import health
from tfps.updates.allreduce import generations
from tfps.updates.allreduce import group_monitor
from tfps.updates.allreduce import leader as leader_lib
from tfps.updates.allreduce import local_state as local_state_lib
from tfps.updates.allreduce import notices as notices_lib
from tfps.updates.allreduce import reduction as reduction_lib

# Errors of collectives that another worker or this one has aborted.
_ENDED = (
  tf.errors.AbortedError,
  tf.errors.CancelledError,
  tf.errors.DeadlineExceededError,
  tf.errors.InternalError,
  tf.errors.UnavailableError,
)
_MAX_FUTILE = 3


def enable(
  peers: Sequence[group_monitor.Peer],
  own: int,
  members: Sequence[int],
  config: Any,
) -> None:
  """Enables collectives among some workers; the first call starts the server.

  Args:
    peers: all workers.
    own: number of this worker.
    members: numbers of those that take part.
    config: `ConfigProto` of the server.

  Raises:
    tf.errors.OpError: the server could not be started.
  """
  tasks = [peers[i].task for i in members]
  compat.enable(
    {
      (peers[i].task.job, peers[i].task.index): peers[i].address
      for i in members
    },
    peers[own].task.job,
    peers[own].task.index,
    leader=(tasks[0].job, tasks[0].index),
    config=config,
  )


class Membership:
  """Membership of this worker in a group.

  Args:
    peers: all workers; the first one leads.
    own: number of this worker.
    local_state: variables that are equal on all members.
    reduction: gets the size and the key of the group.
    num_steps: number of steps of the group, one of these variables.
    config: `ConfigProto` of this process' server.
    connect_secs: seconds until all workers have begun.
    step_secs: seconds to wait for workers that are alive.
    silence_secs: seconds for which a worker may give no sign of life.
    tell: called with 'lost' or 'back' and the names of such workers.

  Attributes:
    size: number of members.
    is_change_due: whether another worker waits to become a member.
    is_partial: whether others have variables that this worker has not made yet,
      and whose values it will need.
  """

  def __init__(
    self,
    peers: Sequence[group_monitor.Peer],
    own: int,
    local_state: local_state_lib.LocalState,
    reduction: reduction_lib.Reduction,
    num_steps: tf.Variable,
    *,
    config: Any,
    connect_secs: float,
    step_secs: float,
    silence_secs: float,
    tell: Callable[[str, Sequence[str]], object],
  ) -> None:
    self.size = len(peers)
    self.is_change_due = self.is_partial = False
    self._num_copied = 0
    self._peers = peers
    self._own = own
    self._local_state = local_state
    self._reduction = reduction
    self._num_steps = num_steps
    self._config = config
    self._connect_secs = connect_secs
    self._step_secs = step_secs
    self._silence_secs = silence_secs
    self._tell = tell
    self._entry = generations.Entry(phase=generations.LEFT)
    self._state = generations.State()
    self._futile = 0
    self._aborted = ''  # why collectives were aborted
    self._has_timed_out = False
    self._runtime_lock = threading.Lock()
    self._enter_lock = threading.Lock()
    self._num_left = 0
    self._stopping = threading.Event()
    self._notices = notices_lib.Notices(
      peers[0].task, peers[0].address, peers[own].task, self._runtime_lock
    )
    self._leader: leader_lib.Leader | None = None
    if own == 0:
      self._leader = leader_lib.Leader(
        peers, self._notices, silence_secs=silence_secs
      )
    self._thread: threading.Thread | None = None

  @property
  def is_member(self) -> bool:
    """True while this worker does steps with others."""
    return self._entry.phase == generations.RUNNING

  @property
  def has_new_variables(self) -> bool:
    """True if variables were made since this worker became a member."""
    return len(self._local_state.variables) != self._num_copied

  @property
  def is_first(self) -> bool:
    """True if no member had done steps when the generation was formed."""
    return self._state.is_first

  def place(self) -> int:
    """Returns how many steps the group has done, as far as is known.

    It is 0 if the leader does not answer. From then on the others know of this
    worker.
    """
    self._begin()
    try:
      return self._notices.state().place
    except tf.errors.OpError:
      return 0

  def join(self) -> None:
    """Becomes a member of the next generation.

    Raises:
      errors.DeadlineError: other workers did not come in time; names them.
      errors.UnreachableError: this process' own server does not answer.
      ValueError: this worker has other variables than the others.
    """
    if self.is_member:
      return
    self._begin()
    secs = self._connect_secs if self._entry.is_new else self._step_secs
    deadline = deadlines.after(secs)
    while not self._join_once(deadline, secs):
      pass

  def leave(self) -> None:
    """Leaves the group, so that nobody waits for this worker.

    Before, workers that are about to return become members, and copy the
    variables. It returns once all members have what this worker has to send.
    """
    if not self.is_member:
      return
    deadline = deadlines.after(self._step_secs)
    while self._late() and not deadlines.is_over(deadline):
      if self.is_change_due:
        self.end()
        self.join()
      time.sleep(timeouts.current().poll_secs)
    place = self._place()
    deadline = deadlines.after(self._silence_secs)
    self._num_left += 1
    self._enter(phase=generations.LEFT, place=place, num_left=self._num_left)
    while not deadlines.is_over(deadline):
      try:
        behind = [
          i
          for i in self._state.members
          if (entry := self._notices.entry(i)) is not None
          and entry.phase == generations.RUNNING
          and entry.place < place
        ]
      except tf.errors.OpError as error:
        logging.warning('Group of workers: %s', errors.first_line(error))
        return
      if not behind:
        return
      time.sleep(timeouts.current().poll_secs)

  def _late(self) -> set[int]:
    """Returns the workers that live, and are about to become members."""
    try:
      entries = {i: self._notices.entry(i) for i in range(len(self._peers))}
    except tf.errors.OpError:
      return set()
    late = {
      i
      for i, entry in entries.items()
      if entry is not None
      and i not in self._state.members
      and (entry.phase == generations.WAITING or entry.is_aside)
    }
    alive = health.may_be_alive(
      {self._peers[i].task: self._peers[i].address for i in late}
    )
    return {i for i in late if self._peers[i].task in alive}

  def end(self) -> None:
    """Ends the generation for this worker; `join` begins the next one."""
    if self.is_member:
      self._enter(phase=generations.WAITING, place=self._place())

  def step_aside(self) -> None:
    """Lets the others go on without this worker, until it calls `join`."""
    if self.is_member:
      self._enter(phase=generations.LEFT, num_left=generations.ASIDE)

  def should_retry(self, error: tf.errors.OpError) -> bool:
    """Returns whether to repeat failed steps in the next generation.

    Args:
      error: error of the steps.

    Raises:
      errors.DeadlineError: workers that are alive did not come to the same
        step in time; names them.
    """
    if not self.is_member or not isinstance(error, _ENDED):
      return False
    self._local_state.restore_kept()
    self.end()
    if self._has_timed_out:
      others = set(self._state.members) - {self._own}
      named = group_monitor.names(self._peers, others)
      raise errors.DeadlineError(
        f'{self._peers[self._own].task} and {named} have not come to the same '
        f'step within {self._step_secs:g} seconds of each other (timeout_secs),'
        ' although they are alive. Does one of them do other work between '
        'steps, or another number of steps?'
      ) from error
    is_known = self._aborted or 'ollective' in str(error)
    self._futile += 1
    return bool(is_known) and self._futile <= _MAX_FUTILE

  def note_progress(self) -> None:
    """Notes that steps were done."""
    self._futile = 0

  def stop(self) -> None:
    """Ends all threads; stopping twice is harmless."""
    self._stopping.set()
    if self._thread is not None:
      self._thread.join(timeouts.current().thread_stop_secs)
    if self._leader is not None:
      self._wait_for_others()
      self._leader.stop()

  def _wait_for_others(self) -> None:
    """Waits until no other worker is a member: they need the leader."""
    deadline = deadlines.after(self._step_secs)
    while self._thread is not None and not deadlines.is_over(deadline):
      try:
        entries = {i: self._notices.entry(i) for i in range(len(self._peers))}
      except tf.errors.OpError:
        return
      left = {
        self._peers[i].task: self._peers[i].address
        for i, entry in entries.items()
        if i != self._own
        and entry
        and (entry.phase != generations.LEFT or entry.is_aside)
      }
      if not health.may_be_alive(left):
        return
      time.sleep(timeouts.current().probe_every_secs)

  def _begin(self) -> None:
    """Lets the others know of this worker."""
    if self._thread is not None:
      return
    peer = self._peers[self._own]
    deadline = deadlines.after(timeouts.current().handshake_secs)
    status = health.probe(peer.task, peer.address)
    while status.incarnation is None and not deadlines.is_over(deadline):
      time.sleep(timeouts.current().poll_secs)
      status = health.probe(peer.task, peer.address)
    if status.incarnation is None:
      raise errors.UnreachableError(f'{status}, which is this process.')
    self._enter(
      incarnation=group_monitor.incarnation(status),
      place=self._place(),
      num_left=generations.ASIDE,
    )
    self._thread = threading.Thread(
      target=self._run, name='tfps-group', daemon=True
    )
    self._thread.start()

  def _join_once(self, deadline: float | None, secs: float) -> bool:
    self._enter(
      phase=generations.WAITING,
      place=self._place(),
      num_left=self._num_left,
      digest=self._local_state.digest(),
      num_packed=self._local_state.num_packed,
    )
    state = self._wait_for_generation(deadline, secs)
    self._aborted, self._has_timed_out = '', False
    self.is_change_due = False
    self._enable(state.members)
    self._reduction.enter_group(
      state.members.index(self._own), len(state.members), state.generation
    )
    self.size = len(state.members)
    self._enter(phase=generations.READY, generation=state.generation)
    if not self._wait_until_begun(state, deadline, secs):
      return False
    self._check(state)
    is_back = self._entry.is_new
    try:
      self._copy_state(state)
    except tf.errors.OpError as error:
      logging.warning('Group of workers: %s', errors.first_line(error))
      return False
    self._state = state
    self._enter(phase=generations.RUNNING, place=self._place(), is_new=False)
    self._report(state, is_back=is_back)
    return True

  def _wait_for_generation(
    self, deadline: float | None, secs: float
  ) -> generations.State:
    """Waits for a generation with this worker.

    Raises:
      errors.DeadlineError: it was not formed in time; names the workers that
        are missing.
    """
    while True:
      try:
        state = self._notices.state()
        if state.generation > self._entry.generation:
          if self._own in state.members and not state.is_broken:
            return state
      except tf.errors.OpError as error:
        logging.log_first_n(
          logging.WARNING, 'Group of workers: %s', 10, errors.first_line(error)
        )
      if deadlines.is_over(deadline):
        missing = leader_lib.names_of_missing(
          self._peers, self._notices, self._own
        )
        raise errors.DeadlineError(
          f'After {secs:g} seconds, {self._peers[self._own].task} still waits '
          f'for {missing}. Start these tasks, with the same program.'
        )
      time.sleep(timeouts.current().poll_secs)

  def _wait_until_begun(
    self, state: generations.State, deadline: float | None, secs: float
  ) -> bool:
    """Waits until all members are ready; returns False if one is lost."""
    while True:
      try:
        now = self._notices.state()
      except tf.errors.OpError:
        return False
      if now.generation != state.generation or now.is_broken:
        return False
      if now.has_begun:
        return True
      if deadlines.is_over(deadline):
        named = group_monitor.names(self._peers, state.members)
        raise errors.DeadlineError(
          f'After {secs:g} seconds, {self._peers[self._own].task} still waits '
          f'for {named} to connect to each other.'
        )
      time.sleep(timeouts.current().short_poll_secs)

  def _check(self, state: generations.State) -> None:
    """Raises ValueError if this worker has other variables than the source."""
    has_fewer = self._local_state.num_packed < state.num_packed
    self.is_partial = has_fewer and self._entry.is_new
    self._num_copied = len(self._local_state.variables)
    if self.is_partial or self._local_state.digest() == state.digest:
      return
    self._enter(phase=generations.LEFT, num_left=generations.ASIDE)
    own, other = self._peers[self._own].task, self._peers[state.source].task
    raise ValueError(
      f'AllReduceStrategy: {own} has other variables than {other}, whose '
      'values all workers copy. Do both run the same program? Make all '
      "variables in the strategy's scope, before the first step."
    )

  def _copy_state(self, state: generations.State) -> None:
    if len(state.members) == 1:
      return
    is_source = state.source == self._own
    given = np.zeros([state.num_packed], np.int32)
    if is_source:
      given = self._local_state.packed()
    with self._reduction.step(()):
      (whole,) = self._reduction.sum([tf.constant(given)])
    if not is_source:
      self._local_state.unpack(whole.numpy())

  def _enable(self, members: Sequence[int]) -> None:
    with self._runtime_lock:
      enable(self._peers, self._own, members, self._config)

  def _enter(self, **changes: Any) -> None:
    """Changes this worker's entry; the thread repeats what does not arrive."""
    with self._enter_lock:
      self._entry = dataclasses.replace(self._entry, **changes)
      try:
        self._notices.enter(self._own, self._entry)
      except tf.errors.OpError as error:
        logging.log_first_n(
          logging.WARNING, 'Group of workers: %s', 10, errors.first_line(error)
        )

  def _place(self) -> int:
    return int(self._num_steps.numpy())

  def _run(self) -> None:
    """Gives signs of life, and aborts collectives that cannot end."""
    since = time.monotonic()  # the leader has answered
    progress = -1, since
    while not self._stopping.wait(timeouts.current().listen_every_secs):
      try:
        with self._runtime_lock:
          place = self._place()
        self._beat(place)
        state = self._notices.state()
        since = time.monotonic()
      except tf.errors.OpError as error:
        if time.monotonic() > since + self._silence_secs:
          leader = self._peers[0]
          self._abort(
            f'{leader.task} at {leader.address} does not answer: '
            f'{errors.first_line(error)}'
          )
        continue
      if progress[0] != place or not self.is_member:
        progress = place, since
      self._follow(state)
      if since > progress[1] + self._step_secs and self.size > 1:
        self._has_timed_out = True
        self._abort('the other workers do not come to the same step')

  def _beat(self, place: int) -> None:
    with self._enter_lock:
      phase = self._entry.phase
      self._entry = dataclasses.replace(
        self._entry,
        beat=self._entry.beat + 1,
        place=place if phase == generations.RUNNING else self._entry.place,
      )
      self._notices.enter(self._own, self._entry)

  def _follow(self, state: generations.State) -> None:
    entry = self._entry
    if entry.phase not in (generations.READY, generations.RUNNING):
      return
    if state.generation != entry.generation:
      self._abort(
        f'generation {state.generation} has begun without this worker'
      )
    elif state.is_broken:
      self._abort('a worker is lost, or has left')
    elif state.is_change_due and not self.is_change_due:
      self.is_change_due = True
      with self._runtime_lock:
        self._reduction.is_change_due.assign(1.0)

  def _abort(self, reason: str) -> None:
    if not self._aborted:
      self._aborted = reason
      with self._runtime_lock:
        compat.abort(f'Collectives are aborted: {reason}.')

  def _report(self, state: generations.State, *, is_back: bool) -> None:
    others = set(state.members) - {self._own}
    named = group_monitor.names(self._peers, others) or 'nobody'
    logging.info(
      '%s adds up gradients with %s.', self._peers[self._own].task, named
    )
    lost = [str(self._peers[i].task) for i in state.lost if i != self._own]
    if lost and not is_back:
      self._tell('lost', lost)
