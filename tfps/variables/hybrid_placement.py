"""Placement of a hybrid strategy's variables: on all workers, or on the ps.

All-reduce transfers fewer bytes for dense gradients, ps fewer for rows of large
tables (Kim et al., "Parallax: sparsity-aware data parallel training of deep
neural networks", 2019). The rule compares the bytes that pass the busiest link
one after another in a step.
"""

from collections.abc import Callable
from collections.abc import Sequence
import dataclasses

PS = 'ps'
WORKERS = 'workers'

_INDEX_BYTES = 8


@dataclasses.dataclass(frozen=True)
class Description:
  """A variable that is about to be created.

  Attributes:
    name: its name.
    shape: its shape; None if unknown.
    num_bytes: its size.
    is_table: whether steps read only some rows: true of a Keras `Embedding`.
  """

  name: str
  shape: tuple[int, ...] | None
  num_bytes: int
  is_table: bool


Choose = Callable[[Description], str]


@dataclasses.dataclass(frozen=True)
class Costs:
  """Bytes that pass the busiest link one after another in a step.

  Attributes:
    workers: bytes if the workers reduce gradients in a ring.
    ps: bytes if workers pull from the ps and push to them.
  """

  workers: float
  ps: float


@dataclasses.dataclass(frozen=True)
class Choice:
  """The place of a variable.

  Attributes:
    description: the variable.
    place: `PS` or `WORKERS`.
    costs: costs of both places.
  """

  description: Description
  place: str
  costs: Costs


@dataclasses.dataclass(frozen=True)
class Rule:
  """Chooses the place with fewer bytes on the busiest link.

  Attributes:
    num_workers: number of workers.
    num_ps: number of ps; variables are assumed to be spread evenly.
    rows_per_step: number of distinct rows of a table that a step reads.
  """

  num_workers: int
  num_ps: int
  rows_per_step: int

  def costs(self, description: Description) -> Costs:
    """Returns the costs of both places.

    In a ring of n workers, each sends a gradient 2 (n - 1) / n times while it
    receives as much (Patarasuk and Yuan 2009). With ps, a worker's link passes
    the values that the worker uses, and a ps' link those of its variables that
    all workers use; gradients add as much, after the computation.

    Args:
      description: the variable.
    """
    workers, used = self.num_workers, self._used_bytes(description)
    return Costs(
      workers=2 * (workers - 1) / workers * description.num_bytes,
      ps=2 * max(used, workers * used / self.num_ps),
    )

  def choose(self, description: Description) -> str:
    """Returns the cheaper place, or `WORKERS` if both cost the same.

    Args:
      description: the variable.
    """
    costs = self.costs(description)
    return PS if costs.ps < costs.workers else WORKERS

  def _used_bytes(self, description: Description) -> float:
    rows = description.shape[0] if description.shape else 0
    if not description.is_table or not rows:
      return description.num_bytes
    used = min(self.rows_per_step, rows)
    return used * (description.num_bytes / rows + _INDEX_BYTES)


class Chooser:
  """Chooses places by a rule or a user's function, and records the choices.

  Args:
    rule: computes costs, and chooses if `choose` is None.
    choose: the user's function.

  Attributes:
    made: the choices so far.
  """

  def __init__(self, rule: Rule, choose: Choose | None) -> None:
    self.made: list[Choice] = []
    self._rule = rule
    self._choose = choose or rule.choose

  def __call__(self, description: Description) -> str:
    """Returns the place of a variable, `PS` or `WORKERS`.

    Args:
      description: the variable.

    Raises:
      ValueError: the user's function returned neither.
    """
    place = self._choose(description)
    if place not in (PS, WORKERS):
      raise ValueError(
        f'choose: gave {place!r} for {description.name}; give {PS!r} or '
        f'{WORKERS!r}.'
      )
    costs = self._rule.costs(description)
    self.made.append(Choice(description, place, costs))
    return place


@dataclasses.dataclass(frozen=True)
class HybridReport:
  """The places of a hybrid strategy's variables, with their costs.

  Attributes:
    choices: the choice for each trainable variable, in order of creation.
  """

  choices: Sequence[Choice]

  def __str__(self) -> str:
    width = max([len(c.description.name) for c in self.choices], default=0)
    lines = [f'{"variable":{width}}  where    {"bytes":>13}  in a ring  by ps']
    for choice in self.choices:
      lines.append(
        f'{choice.description.name:{width}}  {choice.place:7}  '
        f'{choice.description.num_bytes:13,}  '
        f'{choice.costs.workers:9,.0f}  {choice.costs.ps:,.0f}'
      )
    return '\n'.join(lines)
