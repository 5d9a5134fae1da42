"""Waits that end: at their deadline, with the names of the silent tasks.

A frozen task blocks whoever talks to it through TensorFlow, and a call that
registers a function with it even holds the interpreter's lock. So other tasks
are probed first, and what may block runs in a thread that can be left behind.
"""

from collections.abc import Callable
from collections.abc import Mapping
import concurrent.futures
import threading
import time
from typing import TypeVar

from absl import logging

from tfps import _deadline
from tfps import cluster as cluster_lib
from tfps import errors
from tfps import probe

_Result = TypeVar('_Result')

_PROBE_SECS = 2.0
_MAX_PROBES_AT_ONCE = 32


class Watch:
  """Knows the tasks that this process waits for.

  Args:
    addresses: where the tasks' servers answer.
    in_flight: the tasks that execute something for this process, and since
      when by `time.monotonic`.
  """

  def __init__(
    self,
    addresses: Mapping[cluster_lib.Task, str],
    in_flight: Callable[[], Mapping[cluster_lib.Task, float]],
  ) -> None:
    self._addresses = dict(addresses)
    self._in_flight = in_flight

  def all_answer(self) -> bool:
    """Whether every task answers now."""
    return not self._silent()

  def wait_while_hung(self, what: str, timeout_secs: float | None) -> None:
    """Returns once no task is frozen; a dead one does no harm.

    To be called before what may block in TensorFlow's runtime, such as the
    tracing of a function.

    Args:
      what: who waits, for the error message.
      timeout_secs: how long to wait; None is for ever.

    Raises:
      errors.DeadlineError: names the tasks that do not answer.
    """
    deadline = _deadline.after(timeout_secs)
    while hung := self._silent(probe.State.HUNG):
      logging.warning('%s waits: %s.', what, _say(hung))
      if _deadline.is_over(deadline):
        raise errors.DeadlineError(f'{what}: {_say(hung)}.')

  def call(
    self,
    what: str,
    function: Callable[[], _Result],
    timeout_secs: float | None,
  ) -> _Result:
    """The function's result, unless it takes too long.

    Args:
      what: what is done, for the error message.
      function: called in a thread of its own.
      timeout_secs: how long to wait; None is for ever.

    Raises:
      errors.DeadlineError: names the silent tasks. The thread is left behind.
    """
    future: concurrent.futures.Future[_Result] = concurrent.futures.Future()
    threading.Thread(
      target=_fulfil, args=(future, function), name=f'tfps-{what}', daemon=True
    ).start()
    deadline = _deadline.after(timeout_secs)
    if not _deadline.wait_until(lambda s: _is_done(future, s), deadline):
      raise self.error(what, timeout_secs)
    return future.result()

  def error(
    self, what: str, timeout_secs: float | None
  ) -> errors.DeadlineError:
    """The error that says who is silent, or else who is still at work."""
    silent = self._silent()
    reason = _say(silent) if silent else self._say_in_flight()
    return errors.DeadlineError(
      f'{what}: not done after {timeout_secs or 0:g} seconds: {reason}.'
    )

  def _silent(self, *states: probe.State) -> list[probe.Status]:
    found = self._probe()
    return [
      status
      for status in found
      if status.state is not probe.State.ALIVE
      and (not states or status.state in states)
    ]

  def _probe(self) -> list[probe.Status]:
    workers = max(1, min(_MAX_PROBES_AT_ONCE, len(self._addresses)))
    with concurrent.futures.ThreadPoolExecutor(workers, 'tfps-probe') as pool:
      return list(pool.map(_probe, *zip(*self._addresses.items(), strict=True)))

  def _say_in_flight(self) -> str:
    now = time.monotonic()
    return 'every task answers, but ' + (
      ', '.join(
        f'{task} has been executing for {now - since:.0f} seconds'
        for task, since in self._in_flight().items()
      )
      or 'no worker executes anything'
    )


def _probe(task: cluster_lib.Task, address: str) -> probe.Status:
  return probe.probe(task, address, timeout_secs=_PROBE_SECS)


def _say(statuses: list[probe.Status]) -> str:
  return ', '.join(str(status) for status in statuses)


def _fulfil(
  future: 'concurrent.futures.Future[_Result]',
  function: Callable[[], _Result],
) -> None:
  try:
    future.set_result(function())
  except BaseException as error:
    future.set_exception(error)


def _is_done(
  future: 'concurrent.futures.Future[_Result]', timeout_secs: float
) -> bool:
  return bool(concurrent.futures.wait([future], timeout_secs).done)
