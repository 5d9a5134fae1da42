"""Executors of the steps of Keras' trainer."""

from collections.abc import Callable
import contextlib
from typing import Any
from typing import Protocol

import numpy as np
import tensorflow as tf

from tfps.cluster import spec as spec_lib


class Executor(Protocol):
  """Executes functions: a `Coordinator`, or this process.

  Attributes:
    timeout_secs: how many seconds an execution may take; None for no limit.
  """

  timeout_secs: float | None

  @property
  def num_workers(self) -> int:
    """How many workers it executes on."""

  def schedule(self, fn: Any, args: Any = None) -> Any:
    """Starts to execute a function; returns a value for `fetch`."""

  def schedule_through(self, attempt: Any, fn: Any, args: Any) -> Any:
    """Starts to execute `attempt(fn, *args)`; see `updates.attempts`."""

  def fetch(self, val: Any) -> Any:
    """Waits for a function and returns its result as arrays."""

  def task_of(self, val: Any) -> spec_lib.Task:
    """Returns the task that has executed a function, which has ended."""

  def surviving(self, function: Callable[[], Any]) -> Any:
    """Calls a function, again if a ps is lost meanwhile."""

  def scheduling(self) -> contextlib.AbstractContextManager[None]:
    """Returns the context in which functions to execute are traced."""

  def can_trace(self) -> bool:
    """Returns whether `scheduling` would not wait for a task that is frozen."""

  def rest(self) -> None:
    """Announces that nothing is scheduled until all results are fetched."""

  def cancel(self) -> None:
    """Cancels the executions that have not been fetched."""


class Here(Executor):
  """Executor that runs functions in this process and survives lost ps.

  Args:
    strategy: its `surviving` calls the functions.
  """

  timeout_secs: float | None = None
  num_workers = 1

  def __init__(self, strategy: Any) -> None:
    self._strategy = strategy

  def schedule(self, fn: Any, args: Any = None) -> Any:
    return self.surviving(lambda: fn(*args))

  def schedule_through(self, attempt: Any, fn: Any, args: Any) -> Any:
    return self.surviving(lambda: attempt(fn, *args))

  def fetch(self, val: Any) -> Any:
    if val is None:  # other workers have done these steps
      return None
    return tf.nest.map_structure(np.asarray, val)

  def task_of(self, val: Any) -> spec_lib.Task:
    del val
    task: spec_lib.Task = self._strategy.task
    return task

  def surviving(self, function: Callable[[], Any]) -> Any:
    return self._strategy.surviving(function)

  def scheduling(self) -> contextlib.AbstractContextManager[Any]:
    scope: contextlib.AbstractContextManager[Any] = self._strategy.scope()
    return scope

  def can_trace(self) -> bool:
    return True

  def rest(self) -> None:
    pass  # functions end before `schedule` returns

  def cancel(self) -> None:
    pass
