"""What was placed on each ps, and how many bytes that is."""

from collections.abc import Sequence
import dataclasses
from typing import Any

import tensorflow as tf

from tfps import placement as placement_lib


@dataclasses.dataclass(frozen=True)
class PlacementReport:
  """The variables of a strategy and where they are.

  Attributes:
    num_bytes: bytes on each ps, by its index.
    variables: names of the variables and shards on each ps, by its index, in
      the order in which they were made.
  """

  num_bytes: tuple[int, ...]
  variables: tuple[tuple[str, ...], ...]

  @property
  def imbalance(self) -> float:
    """The fullest ps' bytes over the average; 1.0 is even."""
    total = sum(self.num_bytes)
    return max(self.num_bytes) * len(self.num_bytes) / total if total else 1.0

  def __str__(self) -> str:
    lines = [f'{"task":<8}{"variables":>10}{"bytes":>16}']
    for ps, (num_bytes, names) in enumerate(
      zip(self.num_bytes, self.variables, strict=True)
    ):
      lines.append(f'{f"ps:{ps}":<8}{len(names):>10}{num_bytes:>16,}')
    lines.append(f'fullest over average: {self.imbalance:.3f}')
    return '\n'.join(lines)


class Ledger:
  """Chooses a ps for each variable and remembers what is where.

  Args:
    policy: chooses.
    num_ps: among how many.
  """

  def __init__(self, policy: placement_lib.Placement, num_ps: int) -> None:
    self._policy = policy
    self._loads = [placement_lib.Load()] * num_ps
    self._num_bytes = [0] * num_ps
    self._variables: list[list[str]] = [[] for _ in range(num_ps)]
    self._reserved = [0] * num_ps

  def place(self, sizes: Sequence[int], *, trainable: bool) -> list[int]:
    """Chooses the ps of a new variable's shards; keeps room for their slots."""
    copies = 1 + (self._policy.num_slots if trainable else 0)
    chosen = self._policy.assign([s * copies for s in sizes], self._loads)
    for ps, size in zip(chosen, sizes, strict=True):
      self._loads[ps] = self._loads[ps].plus(size * copies)
      self._reserved[ps] += size * (copies - 1)
    return chosen

  def note(self, name: str, num_bytes: int, *, ps: int) -> None:
    """Takes note of a variable that was placed."""
    self._num_bytes[ps] += num_bytes
    self._variables[ps].append(name)

  def note_colocated(self, name: str, num_bytes: int, *, ps: int) -> None:
    """Takes note of a variable that had to go where another one is."""
    reserved = min(num_bytes, self._reserved[ps])
    self._reserved[ps] -= reserved
    load = self._loads[ps]
    self._loads[ps] = dataclasses.replace(
      load, num_bytes=load.num_bytes + num_bytes - reserved
    )
    self.note(name, num_bytes, ps=ps)

  def report(self) -> PlacementReport:
    """What is where now."""
    return PlacementReport(
      tuple(self._num_bytes), tuple(tuple(names) for names in self._variables)
    )


def ps_index(device: str) -> int | None:
  """The index of the ps that a device belongs to; None if it is no ps'."""
  spec: Any = tf.DeviceSpec.from_string(device)
  return spec.task if spec.job == 'ps' else None


def ps_device(ps: int) -> str:
  """Where a ps keeps its variables."""
  return f'/job:ps/task:{ps}/device:CPU:0'
