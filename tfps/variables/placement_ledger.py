"""Records the variables placed on each ps, and their bytes."""

from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
from typing import Any

import tensorflow as tf

from tfps.variables import placement as placement_lib


@dataclasses.dataclass(frozen=True)
class PlacementReport:
  """The variables of a strategy, by ps.

  Attributes:
    num_bytes: bytes of variables on each ps, by its index.
    variables: names of the variables and shards on each ps, by its index, in
      the order of creation.
    replica_bytes: bytes of replicas of other ps' variables on each ps, by its
      index; see `tfps.Recovery`.
    links: bytes that pass each link, by its name, if every worker pulls and
      pushes all variables once; only for `placement.TopologyAware`.
  """

  num_bytes: tuple[int, ...]
  variables: tuple[tuple[str, ...], ...]
  replica_bytes: tuple[int, ...]
  links: Mapping[str, float] = dataclasses.field(default_factory=dict)

  @property
  def imbalance(self) -> float:
    """The fullest ps' bytes, replicas included, over the average."""
    sums = [own + replicas for own, replicas in self._bytes()]
    total = sum(sums)
    return max(sums) * len(sums) / total if total else 1.0

  def __str__(self) -> str:
    has_replicas = any(self.replica_bytes)
    last = f'{"replicas":>16}' if has_replicas else ''
    lines = [f'{"task":<8}{"variables":>10}{"bytes":>16}{last}']
    for ps, (num_bytes, replica_bytes) in enumerate(self._bytes()):
      last = f'{replica_bytes:>16,}' if has_replicas else ''
      number = len(self.variables[ps])
      lines.append(f'{f"ps:{ps}":<8}{number:>10}{num_bytes:>16,}{last}')
    lines.append(f'fullest over average: {self.imbalance:.3f}')
    if self.links:
      link = max(self.links, key=lambda each: self.links[each])
      lines.append(f'busiest link: {link}, {self.links[link]:,.0f} bytes')
    return '\n'.join(lines)

  def _bytes(self) -> list[tuple[int, int]]:
    return list(zip(self.num_bytes, self.replica_bytes, strict=True))


class PlacementLedger:
  """Chooses a ps for each variable, and records the variables of each ps.

  Args:
    policy: the placement policy.
    num_ps: number of ps.
    replicas: number of replicas of each variable, on the ps after its own.
  """

  def __init__(
    self, policy: placement_lib.Placement, num_ps: int, *, replicas: int = 0
  ) -> None:
    self._policy = policy
    self._replicas = replicas
    self._loads = [placement_lib.Load()] * num_ps
    self._num_bytes = [0] * num_ps
    self._transferred = [0] * num_ps
    self._variables: list[list[str]] = [[] for _ in range(num_ps)]
    self._reserved = [0] * num_ps

  @property
  def num_ps(self) -> int:
    """The number of ps."""
    return len(self._loads)

  @property
  def num_replicas(self) -> int:
    """How many replicas each variable has."""
    return self._replicas

  def place(self, sizes: Sequence[int], *, trainable: bool) -> list[int]:
    """Chooses the ps of a new variable's shards, and reserves optimizer slots.

    Args:
      sizes: bytes of each shard.
      trainable: whether the variable will have optimizer slots.

    Returns:
      The index of the ps of each shard.
    """
    copies = 1 + (self._policy.num_slots if trainable else 0)
    chosen = self._policy.assign([s * copies for s in sizes], self._loads)
    for ps, size in zip(chosen, sizes, strict=True):
      self._loads[ps] = self._loads[ps].plus(size * copies)
      self._reserved[ps] += size * (copies - 1)
    return chosen

  def note(self, name: str, num_bytes: int, *, ps: int) -> None:
    """Records a variable that was placed by `place`.

    Args:
      name: name of the variable or shard.
      num_bytes: its size.
      ps: the index of its ps.
    """
    self._transferred[ps] += num_bytes
    self._note(name, num_bytes, ps=ps)

  def note_colocated(self, name: str, num_bytes: int, *, ps: int) -> None:
    """Records a variable that was colocated with another, such as a slot.

    Args:
      name: name of the variable or shard.
      num_bytes: its size.
      ps: the index of its ps.
    """
    reserved = min(num_bytes, self._reserved[ps])
    self._reserved[ps] -= reserved
    load = self._loads[ps]
    self._loads[ps] = dataclasses.replace(
      load, num_bytes=load.num_bytes + num_bytes - reserved
    )
    self._note(name, num_bytes, ps=ps)

  def _note(self, name: str, num_bytes: int, *, ps: int) -> None:
    self._num_bytes[ps] += num_bytes
    self._variables[ps].append(name)

  def report(self) -> PlacementReport:
    """Returns the current placement."""
    own = self._num_bytes
    replica_bytes = [
      sum(own[(ps - distance) % len(own)] for distance in self._distances())
      for ps in range(len(own))
    ]
    return PlacementReport(
      tuple(own),
      tuple(tuple(names) for names in self._variables),
      tuple(replica_bytes),
      self._links(),
    )

  def _links(self) -> dict[str, float]:
    if not isinstance(self._policy, placement_lib.WithinTopology):
      return {}
    # Optimizer slots are on their variables' ps and are not transferred.
    found = self._policy.links.of(self._transferred)
    return {str(link): num_bytes for link, num_bytes in found.items()}

  def _distances(self) -> range:
    """Offsets of the ps whose replicas a ps stores."""
    return range(1, 1 + self._replicas)


def ps_index(device: str) -> int | None:
  """Returns the index of the ps that a device belongs to; None if none."""
  spec: Any = tf.DeviceSpec.from_string(device)
  return spec.task if spec.job == 'ps' else None


def ps_device(ps: int) -> str:
  """Returns the device on which a ps keeps its variables."""
  return f'/job:ps/task:{ps}/device:CPU:0'
