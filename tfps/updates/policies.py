"""Update policies: when gradients become updates."""

import dataclasses
import math
from typing import Any
from typing import ClassVar


class Policy:
  """Base class of update policies, with what most of them have in common.

  Attributes:
    steps_per_update: number of a worker's steps that make one update.
    waits: whether workers wait for each other.
    makes_one_update: whether a step of all workers makes one update.
    divide_rate: whether to divide the learning rate of an update by its
      staleness.
    backup_workers: number of workers for which an update need not wait.
    timeout_secs: seconds for which others wait for a worker that is dead or
      frozen.
    outer: optimizer of the change that local steps make; None for the step's.
  """

  steps_per_update: ClassVar[Any] = 1
  waits: ClassVar[bool] = False
  makes_one_update: ClassVar[bool] = False
  divide_rate: bool = False
  backup_workers: int = 0
  timeout_secs: float = 0.0
  outer: Any = None


@dataclasses.dataclass(frozen=True)
class Async(Policy):
  """Applies each step's gradients on their own, as they arrive.

  Attributes:
    divide_rate: whether to divide the learning rate of an update by its
      staleness, where that is above 1 (Zhang et al., 2016, "Staleness-aware
      async-SGD for distributed deep learning",
      https://arxiv.org/abs/1511.05950). Optimizers that compute updates by
      themselves are refused: subclasses of Keras', and those without a rule.
  """

  divide_rate: bool = False


@dataclasses.dataclass(frozen=True)
class Accumulate(Policy):
  """Makes one update of n steps, by the mean of their gradients.

  A worker pulls parameters once for n steps, computes the gradients of all of
  them with these, and pushes their mean. So it is like one step on a batch n
  times as large: the optimizer's `iterations`, schedules and clipping count
  updates.

  Attributes:
    n: number of steps.
  """

  n: int

  def __post_init__(self) -> None:
    _check_number(self)

  @property
  def steps_per_update(self) -> int:
    """Number of steps that make one update."""
    return self.n


@dataclasses.dataclass(frozen=True)
class LocalSteps(Policy):
  """Lets each worker do n local steps, then pushes the resulting change.

  A worker takes gradient steps on its own copy of the parameters. The ps get
  the sum of its gradients, which is the change that gradient descent at
  `inner_learning_rate` has made, divided by that rate. The step's optimizer
  is applied to it, on the ps, once for n steps: gradient descent at the same
  rate makes it local SGD (Stich, 2019,
  https://arxiv.org/abs/1805.09767), and Adam the federated form of Adam (Reddi
  et al., 2021, https://arxiv.org/abs/2003.00295).

  `outer` is applied in the place of that optimizer, to the change itself, old
  values minus new. Gradient descent at rate 1 adds the change, as federated
  averaging does (McMahan et al., 2017, https://arxiv.org/abs/1602.05629);
  Nesterov's momentum of 0.9 at rate 0.7 is DiLoCo's (Douillard et al., 2023,
  https://arxiv.org/abs/2311.08105).

  Workers do not wait for each other, and each adds its own change. With many
  workers, take smaller rates.

  The step's optimizer may scale the loss. If its scale is dynamic, n steps are
  left out of the ps if a gradient of one is not finite.

  Attributes:
    n: number of steps.
    inner_learning_rate: learning rate of gradient descent on the worker.
    outer: a Keras optimizer; each of the step's optimizers gets a copy of it as
      its `outer_optimizer`, which checkpoints include. None applies the step's
      own optimizer.
  """

  n: int
  inner_learning_rate: float
  outer: Any = None

  def __post_init__(self) -> None:
    _check_number(self)
    rate = self.inner_learning_rate
    is_number = isinstance(rate, int | float) and not isinstance(rate, bool)
    if not is_number or not 0 < rate < math.inf:
      raise ValueError(
        f'LocalSteps: inner_learning_rate is {rate!r}. Give a number above 0.'
      )
    if self.outer is not None and not hasattr(self.outer, 'apply'):
      raise ValueError(
        f'LocalSteps: outer is {self.outer!r}, which is no optimizer. Give one '
        'of keras.optimizers, or None.'
      )
    if hasattr(self.outer, 'inner_optimizer') or getattr(
      self.outer, 'loss_scale_factor', None
    ):
      raise ValueError(
        f'LocalSteps: outer is {self.outer!r}, which divides what it applies '
        'by the scale of a loss, but gets what local steps have changed. Have '
        "only the step's own optimizer scale the loss."
      )
    # Its own variables may not outlive the connection to a cluster.
    config = None if self.outer is None else self.outer.get_config()
    object.__setattr__(self, '_outer_config', config)

  @property
  def steps_per_update(self) -> int:
    """Number of steps that make one update."""
    return self.n

  def make_outer(self) -> Any:
    """Returns a new optimizer with the configuration of `outer`."""
    return type(self.outer).from_config(self._outer_config)  # type: ignore[attr-defined]


@dataclasses.dataclass(frozen=True)
class Sync(Policy):
  """Makes one update of a step of all workers, by their gradients' mean.

  With n workers, b of them backups, each update is the mean of the first n - b
  gradients that were computed with the parameters of the update before. Later
  gradients are dropped and counted; they are never part of a later update.
  Without backups that is one step on the batches of all workers together: the
  optimizer's `iterations`, schedules and clipping count updates.

  Source: Chen et al., 2016, "Revisiting distributed synchronous SGD",
  https://arxiv.org/abs/1604.00981; `tf.compat.v1.train.SyncReplicasOptimizer`.

  Attributes:
    backup_workers: number of workers for which an update need not wait.
    timeout_secs: seconds for which updates wait for a worker that is dead or
      frozen, unless backups replace it. Then it is excluded until it is back.
      For a worker that answers, updates wait without limit.
  """

  backup_workers: int = 0
  timeout_secs: float = 15.0

  waits = True
  makes_one_update = True

  def __post_init__(self) -> None:
    _check_count(self, 'backup_workers', self.backup_workers)
    _check_secs(self)


@dataclasses.dataclass(frozen=True)
class BoundedStaleness(Policy):
  """Applies gradients as they arrive, and limits the lead of workers.

  A worker begins a step once it is no more than `max_lead` steps ahead of the
  slowest, so that it sees all updates of all workers but those of their last
  `max_lead` steps. With 0, no worker begins a step before all have done the one
  before; with a large number, it is like `Async`. Workers do not wait for one
  that is dead or excluded; a worker that returns continues at the step of the
  slowest.

  Source: Ho et al., 2013, "More effective distributed ML via a stale
  synchronous parallel parameter server"; Li et al., 2014, "Scaling distributed
  machine learning with the parameter server".

  Attributes:
    max_lead: number of steps that a worker may be ahead.
    timeout_secs: seconds for which others wait for a worker that is dead or
      frozen. For a worker that answers, they wait without limit.
    divide_rate: whether to divide the learning rate by the staleness; see
      `Async`.
  """

  max_lead: int
  timeout_secs: float = 15.0
  divide_rate: bool = False

  waits = True

  def __post_init__(self) -> None:
    _check_count(self, 'max_lead', self.max_lead)
    _check_secs(self)


def checked(updates: Any) -> Policy:
  """Returns the update policy that a strategy was given, `Async` for None.

  Args:
    updates: the strategy's argument of this name.

  Raises:
    ValueError: it is no update policy.
  """
  if updates is None:
    return Async()
  if not isinstance(updates, Policy):
    raise ValueError(
      f'updates is {updates!r}, which is no update policy. Give one of '
      'tfps.updates, such as tfps.updates.Sync().'
    )
  return updates


def _check_count(policy: Any, name: str, value: Any) -> None:
  if not isinstance(value, int) or isinstance(value, bool) or value < 0:
    raise ValueError(
      f'{type(policy).__name__}: {name} is {value!r}. Give a number from 0 on.'
    )


def _check_secs(policy: Any) -> None:
  secs = policy.timeout_secs
  is_number = isinstance(secs, int | float) and not isinstance(secs, bool)
  if not is_number or not 0 < secs < math.inf:
    raise ValueError(
      f'{type(policy).__name__}: timeout_secs is {secs!r}. Give a number of '
      'seconds above 0.'
    )


def _check_number(policy: Any) -> None:
  if not isinstance(policy.n, int) or isinstance(policy.n, bool):
    raise ValueError(
      f'{type(policy).__name__}: n is {policy.n!r}. Give a number of steps.'
    )
  if policy.n < 1:
    raise ValueError(
      f'{type(policy).__name__}: n is {policy.n}. Give a number of steps from '
      '1 on.'
    )
