"""The transfers of a strategy: sets up tracing of steps, and counts bytes."""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import threading
from typing import Any
from typing import TypeVar

from tfps._compat import handles
from tfps._compat import reads
from tfps.wire import config
from tfps.wire import step_transfers as step_transfers_lib
from tfps.wire import traffic as traffic_lib

_Traced = TypeVar('_Traced')

# More unrolled steps make graphs that take too long to prepare.
_MAX_UNROLL = 32


class Transfers:
  """Manages the transfers between a strategy's ps and workers.

  Args:
    wire: the transfer options.
    num_ps: number of ps.
    policy: the update policy; see `tfps.updates`. By default each step makes an
      update.
    is_local: whether functions are executed in this process.

  Attributes:
    wire: as given.
    policy: as given.
    round_length: number of steps per update.

  Raises:
    ValueError: the policy does not work with the transfer options.
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
        f'{policy}: each step sees all updates before it, but {wire} '
        'prefetches older parameters. Leave out prefetch.'
      )
    self._is_local = is_local
    self._num_ps = num_ps
    self._totals = traffic_lib.Totals(num_ps)
    self._unfused: set[Any] = set()
    self._warned: set[str] = set()
    self._process_traffic: traffic_lib.ProcessTraffic | None = None
    self._reporting = threading.Lock()

  @property
  def waits(self) -> bool:
    """True if workers wait for each other's updates."""
    return getattr(self.policy, 'waits', False)

  def workspace(self) -> traffic_lib.Workspace:
    """Returns a new workspace for the function that is being traced."""
    return traffic_lib.Workspace(traffic_lib.Traffic(self._num_ps))

  def steps(
    self,
    workspace: traffic_lib.Workspace,
    num_steps: int,
    sync_step: Any = None,
  ) -> step_transfers_lib.Steps:
    """Returns the steps to be traced into the current function.

    Args:
      workspace: the function's.
      num_steps: the number of steps, unrolled.
      sync_step: the synchronization of workers; None if they do not wait.
    """
    return step_transfers_lib.Steps(
      self.wire,
      workspace,
      num_steps,
      self._unfused,
      policy=self.policy,
      sync_step=sync_step,
      warned=self._warned,
    )

  def check_execution(self, num_steps: int) -> None:
    """Checks that an execution has enough steps for an update.

    Args:
      num_steps: steps per execution.

    Raises:
      ValueError: an update takes more steps.
    """
    if self.round_length > 1 and num_steps < self.round_length:
      raise ValueError(
        f'steps_per_execution: {num_steps}, but {self.policy} makes one '
        'update of more steps, all within one execution. Raise '
        f'steps_per_execution to {self.round_length}, or a multiple of it.'
      )

  @property
  def loop_size(self) -> int:
    """The number of steps in the body of a loop over steps: whole updates."""
    # Parameters are prefetched within the body of the loop only.
    steps = self.wire.unroll or (_MAX_UNROLL if self.wire.prefetch else 1)
    return max(steps - steps % self.round_length, self.round_length)

  def unrolled_size(self, num_steps: int, most: int) -> int:
    """Returns how many steps a loop may repeat once it pays to unroll more.

    It is `loop_size` if no more can be unrolled.

    Args:
      num_steps: how many steps a full execution has, which the loop divides.
      most: how many steps may be unrolled.
    """
    if self.wire.unroll is not None:
      return self.loop_size
    sizes = [
      size
      for size in range(self.loop_size, min(most, _MAX_UNROLL, num_steps) + 1)
      if not (num_steps % size or size % self.round_length)
    ]
    return max(sizes, default=self.loop_size)

  @contextlib.contextmanager
  def single_step(self) -> Iterator[None]:
    """Returns a context manager to trace a step of a user's function.

    It has no effect within steps that are traced already. Transfers in other
    processes are not counted.
    """
    is_function = reads.is_function_being_traced()
    if not self.wire.fuse or not is_function or reads.reader() is not None:
      yield
      return
    if self._is_local and self._process_traffic is None:
      self._process_traffic = traffic_lib.ProcessTraffic(self._num_ps)
    workspace = traffic_lib.Workspace(self._process_traffic)
    steps = step_transfers_lib.Steps(
      self.wire,
      workspace,
      1,
      self._unfused,
      may_repeat=False,
      warned=self._warned,
    )
    with steps.step():
      yield
    if self._process_traffic is not None:
      self._process_traffic.add_step()

  def count(self, counted: Any, num_steps: int) -> None:
    """Adds the counts of an execution.

    Args:
      counted: bytes of shape [2, num_ps]; see `traffic.Workspace.counted`.
      num_steps: the number of the execution's steps.
    """
    self._totals.add(counted, num_steps)

  def report(self) -> traffic_lib.WireReport:
    """Returns the bytes transferred so far."""
    with self._reporting:  # a report takes what was counted since the last
      if self._process_traffic is not None:
        self._totals.add(*self._process_traffic.take())
    return self._totals.report(self.wire.pull, self.wire.push)


def trace_until_stable(trace: Callable[[], _Traced]) -> _Traced:
  """Calls a function that traces steps until they need not be traced again."""
  while True:
    try:
      return trace()
    except (step_transfers_lib.HoistedError, handles.RenewedError):
      pass


def of(strategy: Any) -> Transfers:
  """Returns a strategy's transfers; without fusing for TensorFlow's own."""
  own = getattr(strategy, 'transfers', None)
  return own or Transfers(config.Wire(fuse=False), num_ps=1)
