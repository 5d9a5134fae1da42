"""A strategy's wire: what steps are traced on, and what it has carried."""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
from typing import Any
from typing import TypeVar

from tfps._compat import reads
from tfps.wire import config
from tfps.wire import step_transfers as step_transfers_lib
from tfps.wire import traffic as traffic_lib
from tfps.wire import workspace as workspace_lib

_Traced = TypeVar('_Traced')


class Transfers:
  """What travels between a strategy's ps and workers.

  Args:
    wire: how.
    num_ps: how many ps there are.
    policy: when gradients become updates; see `tfps.updates`. By default after
      each step.
    is_local: whether functions are executed in this process.

  Attributes:
    policy: as given.
    round_length: how many steps make one update.
  """

  def __init__(
    self,
    wire: config.Wire,
    num_ps: int,
    *,
    policy: Any = None,
    is_local: bool = False,
  ) -> None:
    self.wire = wire
    self.policy = policy
    self.round_length = policy.steps_per_update if policy else 1
    if self.round_length > 1 and not wire.fuse:
      raise ValueError(
        f'{policy}: needs the wire to fuse transfers, which {wire} does not.'
      )
    if self.waits and wire.prefetch:
      raise ValueError(
        f'{policy}: each step sees all updates before it, and {wire} has it '
        'see older parameters. Leave out prefetch.'
      )
    self._is_local = is_local
    self._num_ps = num_ps
    self._totals = traffic_lib.Totals(num_ps)
    self._kept: set[Any] = set()
    self._running: traffic_lib.Running | None = None

  @property
  def waits(self) -> bool:
    """Whether workers wait for each other's updates."""
    return getattr(self.policy, 'waits', False)

  def workspace(self) -> workspace_lib.Workspace:
    """For the function that is being traced."""
    return workspace_lib.Workspace(traffic_lib.Traffic(self._num_ps))

  def steps(
    self,
    workspace: workspace_lib.Workspace,
    num_steps: int,
    sync_step: Any = None,
  ) -> step_transfers_lib.Steps:
    """For steps that are laid out in the function that is being traced."""
    return step_transfers_lib.Steps(
      self.wire,
      workspace,
      num_steps,
      self._kept,
      policy=self.policy,
      sync_step=sync_step,
    )

  def check_execution(self, num_steps: int) -> None:
    """Makes sure that executions have room for an update.

    Raises:
      ValueError: gradients of more steps are to be gathered.
    """
    if self.round_length > 1 and num_steps < self.round_length:
      raise ValueError(
        f'steps_per_execution: {num_steps}, but {self.policy} makes one '
        'update of more steps, and gathers them within an execution. Raise '
        f'steps_per_execution to {self.round_length}, or a multiple of it.'
      )

  def unrolled(self, most: int) -> int:
    """How many steps to lay out in one graph: whole updates."""
    return max(most - most % self.round_length, self.round_length)

  @contextlib.contextmanager
  def step_alone(self) -> Iterator[None]:
    """For a step in a function of somebody else's; nothing within others.

    What crosses in other processes then is not counted.
    """
    is_function = reads.is_function_being_traced()
    if not self.wire.fuse or not is_function or reads.reader() is not None:
      yield
      return
    if self._is_local and self._running is None:
      self._running = traffic_lib.Running(self._num_ps)
    workspace = workspace_lib.Workspace(self._running)
    steps = step_transfers_lib.Steps(
      self.wire, workspace, 1, self._kept, may_repeat=False
    )
    with steps.step():
      yield
    if self._running is not None:
      self._running.add_step()

  def count(self, counted: Any, num_steps: int) -> None:
    """Takes note of what an execution has counted."""
    self._totals.add(counted, num_steps)

  def report(self) -> traffic_lib.WireReport:
    """What has crossed so far."""
    if self._running is not None:
      self._totals.add(*self._running.take())
    return self._totals.report(self.wire.pull, self.wire.push)


def traced(trace: Callable[[], _Traced]) -> _Traced:
  """Calls what traces steps, again if it has to be."""
  while True:
    try:
      return trace()
    except step_transfers_lib.HoistedError:
      pass


def of(strategy: Any) -> Transfers:
  """A strategy's; one of TensorFlow's own leaves all transfers alone."""
  own = getattr(strategy, 'transfers', None)
  return own or Transfers(config.Wire(fuse=False), num_ps=1)
