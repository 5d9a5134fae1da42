"""Where a hybrid's variables are to be: with every worker, or on the ps.

A dense gradient travels less where workers add up theirs among themselves; a
few rows of a large table travel less to and from the ps that has it (Parallax:
Kim et al. 2019, "Parallax: sparsity-aware data parallel training of deep neural
networks"). The rule is by the bytes that pass the busiest link in a step, one
after another.
"""

from collections.abc import Callable
from collections.abc import Sequence
import dataclasses

PS = 'ps'
WORKERS = 'workers'

_INDEX_BYTES = 8


@dataclasses.dataclass(frozen=True)
class Description:
  """A variable that is about to be made.

  Attributes:
    name: of the variable.
    shape: of the variable; None if it is not known.
    num_bytes: its size.
    is_table: whether it is one of which a step reads some rows: that of a Keras
      `Embedding`.
  """

  name: str
  shape: tuple[int, ...] | None
  num_bytes: int
  is_table: bool


Choose = Callable[[Description], str]


@dataclasses.dataclass(frozen=True)
class Costs:
  """The bytes of a step that pass the busiest link one after another.

  Attributes:
    workers: if the workers add up gradients among themselves, in a ring.
    ps: if each pulls from the ps, and pushes to them.
  """

  workers: float
  ps: float


@dataclasses.dataclass(frozen=True)
class Choice:
  """Where a variable is.

  Attributes:
    description: of the variable.
    place: `PS` or `WORKERS`.
    costs: of both.
  """

  description: Description
  place: str
  costs: Costs


@dataclasses.dataclass(frozen=True)
class Rule:
  """Chooses by the bytes that pass the busiest link one after another.

  Attributes:
    num_workers: how many workers there are.
    num_ps: how many ps, on which variables are spread evenly.
    rows_per_step: how many different rows of a table a step of a worker reads.
  """

  num_workers: int
  num_ps: int
  rows_per_step: int

  def costs(self, description: Description) -> Costs:
    """What both places cost.

    In a ring of n workers, each sends a gradient 2 (n - 1) / n times (Patarasuk
    and Yuan 2009), while it receives as much. From p ps, each worker's link
    passes what it uses, and each ps' link what all workers use of its part. As
    much goes back, but only once the step is computed.
    """
    workers, used = self.num_workers, self._used_bytes(description)
    return Costs(
      workers=2 * (workers - 1) / workers * description.num_bytes,
      ps=2 * max(used, workers * used / self.num_ps),
    )

  def choose(self, description: Description) -> str:
    """The cheaper place; if both cost the same, that without a ps."""
    costs = self.costs(description)
    return PS if costs.ps < costs.workers else WORKERS

  def _used_bytes(self, description: Description) -> float:
    rows = description.shape[0] if description.shape else 0
    if not description.is_table or not rows:
      return description.num_bytes
    used = min(self.rows_per_step, rows)
    return used * (description.num_bytes / rows + _INDEX_BYTES)


class Chooser:
  """Has a rule, or a user, choose, and keeps what was chosen.

  Args:
    rule: chooses, and tells costs.
    choose: chooses in its place.

  Attributes:
    made: the choices so far.
  """

  def __init__(self, rule: Rule, choose: Choose | None) -> None:
    self.made: list[Choice] = []
    self._rule = rule
    self._choose = choose or rule.choose

  def __call__(self, description: Description) -> str:
    """The place of a variable.

    Raises:
      ValueError: the user's function gives something else.
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
  """Where the variables of a hybrid are, and why.

  Attributes:
    choices: of each variable that learns, in the order in which they were made.
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
