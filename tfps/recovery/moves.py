"""Moves what a ps has while all who share variables stand still."""

from collections.abc import Callable
from collections.abc import Collection
import contextlib

from absl import logging
import tensorflow as tf

from tfps import _standstill
from tfps import errors
from tfps._utils import threads
from tfps.cluster import spec as spec_lib
from tfps.recovery import consistency_note as consistency_note_lib
from tfps.recovery import replicas as replicas_lib
from tfps.recovery import snapshotter as snapshotter_lib
from tfps.server import client
from tfps.server import ps_addresses
from tfps.variables import placement_ledger

_HOME_SECS = 2.0  # how often to look whether a guest can go home


class Moves:
  """The chief's: others may hold on to a ps until they are told.

  What is moved is first cut, or is on replicas, and then taken away where it
  was: who had not stood still could change nothing there any more, and would
  learn of it by an error.

  Args:
    task: of this process.
    address_book: of the ps.
    snapshotter: of the variables.
    replicas: of them.
    notes: of the job.
    alone: within it, nobody of this process is at an execution.
    mend: gives variables that have none their values, and goes to where ps are
      now.
  """

  def __init__(
    self,
    task: spec_lib.Task,
    *,
    address_book: ps_addresses.PsAddressBook,
    snapshotter: snapshotter_lib.Snapshotter,
    replicas: replicas_lib.Replicas,
    notes: consistency_note_lib.ConsistencyNotes,
    alone: Callable[[], contextlib.AbstractContextManager[object]],
    mend: Callable[[], object],
  ) -> None:
    self._task = task
    self._address_book = address_book
    self._snapshotter = snapshotter
    self._replicas = replicas
    self._notes = notes
    self._alone = alone
    self._mend = mend
    self._sends_home = threads.Periodic(
      'tfps-send-home', _HOME_SECS, self._send_home
    )

  def start(self) -> None:
    """Has guests go home, from now on, once they can."""
    # What a chief that has died has called would keep newcomers waiting.
    self._say_where()
    self._sends_home.start()

  def stop(self) -> None:
    """Has guests stay where they are; twice is harmless."""
    self._sends_home.stop()

  def hand_over(self, ps: spec_lib.Task) -> bool:
    """Has another ps serve one that is to end, and those that it serves.

    Returns:
      Whether it does.
    """
    leaving = {ps, *self._address_book.guests_of(ps)}
    indices = {task.index for task in leaving}
    return self._move(leaving, lambda: self._address_book.take_over(indices))

  def _send_home(self) -> None:
    can_go = self._address_book.back_home()
    if can_go:
      self._move(can_go, lambda: self._address_book.send_home(can_go))
      self._address_book.dismiss(can_go)

  def _move(
    self, tasks: Collection[spec_lib.Task], move: Callable[[], object]
  ) -> bool:
    """Whether all have moved."""
    before = dict(self._address_book.addresses)
    try:
      with self._alone():
        places = [
          p for p in client.places(self._address_book) if p.task not in tasks
        ]
        if not places:
          return False
        with _standstill.called(
          places, self._task, lambda: self._address_book.addresses
        ) as standstill:
          self._snapshotter.save_quiesced()
          self._replicas.refresh()
          standstill.check()
          self._take_away({task.index for task in tasks})
          move()
          self._mend()
        self._say_where()  # those that have come home do not know
    except (tf.errors.OpError, errors.Error) as error:
      logging.warning(
        'Moving %s failed: %s', ', '.join(map(str, sorted(tasks))), error
      )
      return False
    now = self._address_book.addresses
    return all(now[task] != before[task] for task in tasks)

  def _say_where(self) -> None:
    places = client.places(self._address_book)
    _standstill.say_where(places, self._address_book.addresses)

  def _take_away(self, ps: set[int]) -> None:
    """Leaves no variable, nor note, on ps: nobody else changes any there."""
    self._notes.remove(ps)
    variables = self._snapshotter.inventory.on(ps)
    twins = [twin for _, twin in self._replicas.pairs()]
    for variable in (
      *variables,
      *(twin for twin in twins if placement_ledger.ps_index(twin.device) in ps),
    ):
      with tf.init_scope(), tf.device(variable.device):
        tf.raw_ops.DestroyResourceOp(
          resource=variable.handle, ignore_lookup_error=True
        )
