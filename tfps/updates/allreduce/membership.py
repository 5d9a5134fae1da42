"""Membership of this worker in a group whose generations `generations` states.

When a generation begins, all members copy the variables of the worker whose
variables contain most steps. From then on they are equal before each step.
"""

from collections.abc import Callable
from collections.abc import Sequence
import threading
import time
from typing import Any

from absl import logging
import numpy as np
import tensorflow as tf

from tfps import errors
from tfps._utils import deadlines
from tfps._utils import timeouts
from tfps.server import health
from tfps.updates.allreduce import algorithms
from tfps.updates.allreduce import follower as follower_lib
from tfps.updates.allreduce import generations
from tfps.updates.allreduce import group_monitor
from tfps.updates.allreduce import leader as leader_lib
from tfps.updates.allreduce import local_state as local_state_lib
from tfps.updates.allreduce import notices as notices_lib
from tfps.updates.allreduce import others as others_lib
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


class Membership:
  """Membership of this worker in a group.

  Args:
    peers: all workers; the first one leads.
    own: number of this worker.
    local_state: variables that are equal on all members.
    reduction: gets the size and the key of the group.
    num_steps: number of steps of the group, one of these variables.
    config: `ConfigProto` of this process' server.
    waits: how long to wait for other workers.
    tell: called with 'lost' or 'back' and the names of such workers.

  Attributes:
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
    waits: group_monitor.Waits,
    tell: Callable[[str, Sequence[str]], object],
  ) -> None:
    self.is_partial = False
    self._num_copied = 0
    self._peers = peers
    self._own = own
    self._local_state = local_state
    self._reduction = reduction
    self._num_steps = num_steps
    self._config = config
    self._waits = waits
    self._tell = tell
    self._state = generations.State()
    self._futile = 0
    self._runtime_lock = threading.Lock()
    self._num_left = 0
    self._notices = notices_lib.Notices(
      peers[0].task, peers[0].address, peers[own].task, self._runtime_lock
    )
    self._others = others_lib.Others(peers, own, self._notices)
    self._entry = follower_lib.OwnEntry(self._notices, own)
    self._leader: leader_lib.Leader | None = None
    if own == 0:
      self._leader = leader_lib.Leader(
        peers, self._notices, silence_secs=waits.silence_secs
      )
    self._follower: follower_lib.Follower | None = None

  @property
  def is_member(self) -> bool:
    """True while this worker does steps with others."""
    return self._entry.value.phase == generations.RUNNING

  @property
  def is_change_due(self) -> bool:
    """True if another worker waits to become a member."""
    return self._follower is not None and self._follower.is_change_due

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

    If the leader does not answer, as it has ended, these are the steps that the
    variables of this worker contain. From then on the others know of it.
    """
    self._begin()
    try:
      return max(self._notices.state().place, self._place())
    except tf.errors.OpError:
      return self._place()

  def join(self) -> None:
    """Becomes a member of the next generation.

    Raises:
      errors.DeadlineError: other workers did not come in time; names them.
      errors.UnreachableError: this process' own server does not answer.
      ValueError: this worker has other variables than the others, or cannot
        add up gradients with them.
    """
    if self.is_member:
      return
    self._begin()
    secs = (
      self._waits.connect_secs
      if self._entry.value.is_new
      else self._waits.step_secs
    )
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
    deadline = deadlines.after(self._waits.step_secs)
    while self._others.are_about_to_join(
      self._state.members
    ) and not deadlines.is_over(deadline):
      if self.is_change_due:
        self.end()
        self.join()
      time.sleep(timeouts.current().poll_secs)
    place = self._place()
    self._num_left += 1
    self._entry.change(
      phase=generations.LEFT, place=place, num_left=self._num_left
    )
    self._others.wait_until_at(
      self._state.members, place, self._waits.silence_secs
    )

  def end(self) -> None:
    """Ends the generation for this worker; `join` begins the next one."""
    if self.is_member:
      self._entry.change(phase=generations.WAITING, place=self._place())

  def step_aside(self) -> None:
    """Lets the others go on without this worker, until it calls `join`."""
    if self.is_member:
      self._step_back()

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
    assert self._follower is not None
    if self._follower.has_timed_out:
      others = set(self._state.members) - {self._own}
      named = group_monitor.names(self._peers, others)
      raise errors.DeadlineError(
        f'{self._peers[self._own].task} and {named} have not come to the same '
        f'step within {self._waits.step_secs:g} seconds of each other '
        '(timeout_secs), although they are alive. Does one of them do other '
        'work between steps, or another number of steps?'
      ) from error
    is_known = self._follower.aborted or 'ollective' in str(error)
    self._futile += 1
    return bool(is_known) and self._futile <= _MAX_FUTILE

  def note_progress(self) -> None:
    """Notes that steps were done."""
    self._futile = 0

  def close(self) -> None:
    """Leaves the group for good; twice is harmless.

    The leader waits until the others are done.
    """
    self.leave()
    if self._leader is not None and self._follower is not None:
      self._others.wait_until_left(self._waits.step_secs)
    if self._follower is not None:
      self._follower.stop()
    if self._leader is not None:
      self._leader.stop()

  def _begin(self) -> None:
    """Lets the others know of this worker."""
    if self._follower is not None:
      return
    peer = self._peers[self._own]
    deadline = deadlines.after(timeouts.current().handshake_secs)
    status = health.probe(peer.task, peer.address)
    while status.incarnation is None and not deadlines.is_over(deadline):
      time.sleep(timeouts.current().poll_secs)
      status = health.probe(peer.task, peer.address)
    if status.incarnation is None:
      raise errors.UnreachableError(f'{status}, which is this process.')
    self._entry.change(
      incarnation=group_monitor.incarnation(status),
      place=self._place(),
      num_left=generations.ASIDE,
    )
    self._follower = follower_lib.Follower(
      peers=self._peers,
      entry=self._entry,
      notices=self._notices,
      reduction=self._reduction,
      place=self._place,
      runtime_lock=self._runtime_lock,
      step_secs=self._waits.step_secs,
      silence_secs=self._waits.silence_secs,
    )

  def _join_once(self, deadline: float | None, secs: float) -> bool:
    self._entry.change(
      phase=generations.WAITING,
      place=self._place(),
      num_left=self._num_left,
      digest=self._local_state.digest(),
      num_packed=self._local_state.num_packed,
      algorithm=self._reduction.hint,
    )
    state = self._wait_for_generation(deadline, secs)
    assert self._follower is not None
    self._follower.begin()
    self._enable(state.members)
    self._reduction.enter_group(
      state.members.index(self._own), len(state.members), state.generation
    )
    self._entry.change(phase=generations.READY, generation=state.generation)
    if not self._wait_until_begun(state, deadline, secs):
      return False
    self._check(state)
    is_back = self._entry.value.is_new
    try:
      self._copy_state(state)
    except tf.errors.OpError as error:
      logging.warning('Group of workers: %s', errors.first_line(error))
      problem = algorithms.refusal(error, self._peers[self._own])
      if problem:
        self._step_back()
        raise ValueError(problem) from error
      return False
    self._state = state
    # A worker that has not all variables yet is no source of them.
    self._entry.change(
      phase=generations.RUNNING, place=self._place(), is_new=self.is_partial
    )
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
        if state.may_be_entered(self._own, self._entry.value):
          return state
      except tf.errors.OpError as error:
        logging.log_first_n(
          logging.WARNING, 'Group of workers: %s', 10, errors.first_line(error)
        )
      if deadlines.is_over(deadline):
        missing = self._others.missing()
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
    """Raises ValueError if this worker does not fit the others."""
    problem = algorithms.disagreement(state, self._own, self._peers)
    if problem:
      self._step_back()
      raise ValueError(problem)
    has_fewer = self._local_state.num_packed < state.num_packed
    # Workers that begin together have come as far as each other.
    may_have_fewer = self._entry.value.is_new and not state.is_first
    self.is_partial = has_fewer and may_have_fewer
    self._num_copied = len(self._local_state.variables)
    if self.is_partial or self._local_state.digest() == state.digest:
      return
    self._step_back()
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

  def _step_back(self) -> None:
    self._entry.change(phase=generations.LEFT, num_left=generations.ASIDE)

  def _enable(self, members: Sequence[int]) -> None:
    with self._runtime_lock:
      others_lib.enable(self._peers, self._own, members, self._config)

  def _place(self) -> int:
    return int(self._num_steps.numpy())

  def _report(self, state: generations.State, *, is_back: bool) -> None:
    others = set(state.members) - {self._own}
    named = group_monitor.names(self._peers, others) or 'nobody'
    logging.info(
      '%s adds up gradients with %s.', self._peers[self._own].task, named
    )
    lost = [str(self._peers[i].task) for i in state.lost if i != self._own]
    if lost and not is_back:
      self._tell('lost', lost)
