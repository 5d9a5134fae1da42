"""Generations of a group of workers: who are its members, and when it ends.

One worker, the chief, leads: it alone decides (`next_state`), from what each
worker says of itself (`Entry`). The others read its decision (`State`).

| phase of a worker | it |
|---|---|
| waiting | executes nothing, and wants to be in the next generation |
| ready | can receive collectives of the generation, but begins none |
| running | executes steps of the generation |
| left | has done all its steps |

A generation is formed once all expected workers wait. It begins once all
members are ready. It is broken when a member is lost, waits again because a
collective failed, or has left while others go on: members then abort their
collectives and wait. If another worker waits, a change is due: members end the
generation by themselves, between two executions.

Invariant: there is one generation at a time, members of a generation begin its
collectives after all of them are ready, and whoever is not a member begins
none.
"""

from collections.abc import Collection
from collections.abc import Mapping
import dataclasses
import json

WAITING, READY, RUNNING, LEFT = 'waiting', 'ready', 'running', 'left'

# As the number of times that a worker has left: it is about to return, and the
# others go on without it until then.
ASIDE = 1 << 30


@dataclasses.dataclass(frozen=True)
class Entry:
  """Entry of a worker: its phase, and what its variables contain.

  Attributes:
    phase: see above.
    generation: the last generation of which it was a member; 0 for none.
    place: number of steps of the group that its variables contain.
    is_new: whether its variables contain none of the group's steps.
    num_left: how often it has left; those that have left as often wait for each
      other.
    incarnation: distinguishes it from earlier processes of the same task.
    digest: hash of the names, shapes and types of its variables.
    num_packed: length of the vector of their values.
    algorithm: TensorFlow's name of that by which it adds up gradients.
    beat: number that it increases as long as it lives.
  """

  phase: str = WAITING
  generation: int = 0
  place: int = 0
  is_new: bool = True
  num_left: int = 0
  incarnation: int = 0
  digest: int = 0
  num_packed: int = 0
  algorithm: str = ''
  beat: int = 0

  @property
  def is_aside(self) -> bool:
    """True if the worker is about to return."""
    return self.phase == LEFT and self.num_left == ASIDE

  @classmethod
  def parse(cls, text: str) -> 'Entry':
    """Returns the entry in a notice."""
    return cls(**json.loads(text))

  def __str__(self) -> str:
    return json.dumps(dataclasses.asdict(self))


@dataclasses.dataclass(frozen=True)
class State:
  """Decision of the leader about the current generation.

  Attributes:
    generation: number of the generation; 0 before the first.
    members: numbers of its workers, in order.
    incarnations: their incarnations.
    algorithms: their algorithms.
    source: member whose variables all others copy at the beginning.
    digest: the digest of the source's variables.
    num_packed: likewise, the length of the vector of their values.
    is_first: whether no member's variables contain steps of the group.
    place: number of steps of the group so far, as far as the leader knows.
    has_begun: whether all members are ready.
    is_broken: whether it has ended by a loss.
    is_change_due: whether it is to end between two executions.
    lost: numbers of the workers that were members before and were lost; they
      may be back.
  """

  generation: int = 0
  members: tuple[int, ...] = ()
  incarnations: tuple[int, ...] = ()
  algorithms: tuple[str, ...] = ()
  source: int = 0
  digest: int = 0
  num_packed: int = 0
  is_first: bool = False
  place: int = 0
  has_begun: bool = False
  is_broken: bool = False
  is_change_due: bool = False
  lost: tuple[int, ...] = ()

  @classmethod
  def parse(cls, text: str) -> 'State':
    """Returns the state in a notice."""
    facts = json.loads(text)
    for name in ('members', 'incarnations', 'algorithms', 'lost'):
      facts[name] = tuple(facts[name])
    return cls(**facts)

  def __str__(self) -> str:
    return json.dumps(dataclasses.asdict(self))

  @property
  def different(self) -> set[int]:
    """The members whose algorithm is not that of the source."""
    found = dict(zip(self.members, self.algorithms, strict=False))
    wanted = found.get(self.source)
    return {i for i, algorithm in found.items() if algorithm != wanted}

  def may_be_entered(self, worker: int, entry: Entry) -> bool:
    """Returns whether a worker that waits is a member, and may get ready.

    A generation of which an earlier process of its task was a member is not
    its own: the leader is about to break it.

    Args:
      worker: its number.
      entry: its entry.
    """
    own = _incarnations(self).get(worker)
    is_next = self.generation > entry.generation and not self.is_broken
    return is_next and own == entry.incarnation


def next_state(
  state: State,
  entries: Mapping[int, Entry],
  lost: Collection[int],
  num_workers: int,
) -> State:
  """Returns the leader's next decision; the same state if there is none.

  Args:
    state: the decision before.
    entries: entries of the workers that have made one.
    lost: workers that are dead, or silent for too long.
    num_workers: number of workers of the cluster.
  """
  alive = {i: entry for i, entry in entries.items() if i not in lost}
  waiting = {i for i, entry in alive.items() if entry.phase == WAITING}
  running = {
    i
    for i in state.members
    if i in alive and _is_in(alive[i], state.generation)
  }
  place = max([state.place, *(e.place for e in alive.values() if not e.is_new)])
  state = dataclasses.replace(state, place=place)
  if running:
    return _going_on(state, alive, waiting, running, lost)
  missing = missing_workers(state, entries, lost, num_workers)
  return _formed(state, alive, waiting, lost) if not missing else state


def missing_workers(
  state: State,
  entries: Mapping[int, Entry],
  lost: Collection[int],
  num_workers: int,
) -> set[int]:
  """Returns the workers for which the next generation waits.

  Args:
    state: the leader's decision.
    entries: entries of the workers that have made one.
    lost: workers that are dead, or silent for too long.
    num_workers: number of workers of the cluster.
  """
  waiting = {
    i: e for i, e in entries.items() if e.phase == WAITING and i not in lost
  }
  if not waiting:
    return set(range(num_workers)) - set(lost)
  is_first = all(entry.is_new for entry in waiting.values())
  if is_first and not state.members:
    expected = set(range(num_workers))
  else:
    # A worker that has left more often has done all that the others still do.
    least = min(entry.num_left for entry in waiting.values())
    expected = {
      i
      for i in state.members or range(num_workers)
      if i not in entries
      or entries[i].phase != LEFT
      or entries[i].num_left <= least
    }
  return expected - set(waiting) - set(lost)


def _incarnations(state: State) -> dict[int, int]:
  """Returns the incarnations of the members, by their numbers."""
  return dict(zip(state.members, state.incarnations, strict=False))


def _is_in(entry: Entry, generation: int) -> bool:
  return entry.phase in (READY, RUNNING) and entry.generation == generation


def _formed(
  state: State,
  alive: Mapping[int, Entry],
  waiting: set[int],
  lost: Collection[int],
) -> State:
  """Returns the next generation, of all workers that wait."""
  if not waiting:
    return state
  members = sorted(waiting)
  were = _incarnations(state)
  source = max(members, key=lambda i: (not alive[i].is_new, alive[i].place, -i))
  return State(
    generation=1
    + max([state.generation, *(e.generation for e in alive.values())]),
    members=tuple(members),
    incarnations=tuple(alive[i].incarnation for i in members),
    algorithms=tuple(alive[i].algorithm for i in members),
    source=source,
    digest=alive[source].digest,
    num_packed=alive[source].num_packed,
    is_first=alive[source].is_new,
    place=state.place,
    lost=tuple(
      i
      for i in state.members
      if i in lost or (i in alive and alive[i].incarnation != were.get(i, 0))
    ),
  )


def _going_on(
  state: State,
  alive: Mapping[int, Entry],
  waiting: set[int],
  running: set[int],
  lost: Collection[int],
) -> State:
  """Returns the same generation: begun, broken, or with a change due."""
  gone = set(state.members) - running
  # A worker that has left may still be sending what the others need for the
  # last step that it has done.
  least = min(alive[i].place for i in running)
  were = _incarnations(state)
  is_broken = any(
    i in lost
    or (i in alive and alive[i].incarnation != were.get(i, 0))
    or (i in waiting and alive[i].generation == state.generation)
    or (i in alive and alive[i].phase == LEFT and alive[i].place <= least)
    for i in gone
  )
  has_begun = state.has_begun or running == set(state.members)
  return dataclasses.replace(
    state,
    has_begun=has_begun and not state.is_broken and not is_broken,
    is_broken=state.is_broken or is_broken,
    is_change_due=bool(waiting - set(state.members)),
  )
