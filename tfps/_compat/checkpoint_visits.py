"""Objects that a checkpoint is restored to in a way of their own.

TensorFlow restores the parts of an object by their names. It has hooks for
objects that save in another way, but none for those whose number of parts, and
so the places of these in lists, is another one than in the checkpoint.
"""

from collections.abc import Callable
from collections.abc import Iterable
import dataclasses
import functools
from typing import Any

import tensorflow as tf
from tensorflow.python.checkpoint import checkpoint as checkpoint_lib
from tensorflow.python.checkpoint import restore as restore_lib

_ATTRIBUTE = '_tfps_facts'


@dataclasses.dataclass
class _Facts:
  """Facts of one restore.

  Attributes:
    memo: results of `Visit.once`.
    left: what is to be done once all objects have been visited, with its place
      in the order.
    num_bound: objects that were bound to no node of their own.
  """

  memo: dict[Any, Any] = dataclasses.field(default_factory=dict)
  left: list[tuple[int, Callable[[], object]]] = dataclasses.field(
    default_factory=list
  )
  num_bound: int = 0


@dataclasses.dataclass(frozen=True, eq=False)
class Visit:
  """An object that a restore has come to, before its parts are restored.

  Attributes:
    position: where the checkpoint has it, a `CheckpointPosition`.
    queue: objects to visit later.
  """

  position: Any
  queue: Any

  @property
  def found(self) -> Any:
    """The object."""
    return self.position.trackable

  @property
  def node(self) -> int:
    """Number of the object in the checkpoint."""
    return int(self.position.proto_id)

  @property
  def path(self) -> str:
    """Prefix of the checkpoint's files."""
    return str(self.position.checkpoint.save_path_string)

  def nodes(self) -> list[dict[str, int]]:
    """Returns the parts of all objects of the checkpoint, by name."""
    return [
      {child.local_name: child.node_id for child in node.children}
      for node in self._proto.nodes
    ]

  def key(self, node: int) -> str:
    """Returns the key of a variable's value."""
    return str(self._proto.nodes[node].attributes[0].checkpoint_key)

  def once(self, make: Callable[['Visit'], Any]) -> Any:
    """Returns what a function makes of a visit of the same restore."""
    memo = self._facts.memo
    if make not in memo:
      memo[make] = make(self)
    return memo[make]

  def restore(self, node: int, part: Any) -> None:
    """Restores another object as TensorFlow does, and its parts."""
    child = self.position.create_child_position(node)
    if child.bind_object(part):
      self.queue.append((child, part))

  def restore_otherwise(
    self,
    nodes: Iterable[tuple[int, Any]],
    others: Iterable[Any],
    order: int,
    restore: Callable[[], object],
  ) -> None:
    """Restores objects by a function, once all objects have been visited.

    Args:
      nodes: numbers of objects of the checkpoint, each with one that takes its
        value.
      others: objects that get values although the checkpoint has none of them.
      order: functions with a lower one are called before.
      restore: the function.
    """
    checkpoint, facts = self.position.checkpoint, self._facts
    facts.left.append((order, restore))
    bound = list(nodes)
    for part in others:
      facts.num_bound += 1
      bound.append((-facts.num_bound, part))  # is the number of no object
    for node, part in bound:
      checkpoint.object_by_proto_id[node] = part
      checkpoint.matched_proto_ids.add(node)
      checkpoint.all_python_objects.add(part)
      part._update_uid = checkpoint.restore_uid

  def resume(self) -> None:
    """Visits the object again, which has got parts meanwhile."""
    with tf.init_scope():
      self.position._restore_descendants()

  @property
  def _proto(self) -> Any:
    return self.position.checkpoint.object_graph_proto

  @property
  def _facts(self) -> _Facts:
    return _facts_of(self.position.checkpoint)


@functools.cache
def take_part(visit: Callable[[Visit], bool]) -> None:
  """Asks a function how to restore the parts of each object.

  Args:
    visit: returns whether it has restored them; if not, TensorFlow does.
  """
  queue_children = restore_lib._queue_children_for_restoration
  coordinator = checkpoint_lib._CheckpointRestoreCoordinator
  restore_saveables = coordinator.restore_saveables

  @functools.wraps(queue_children)
  def queue_otherwise(checkpoint_position: Any, visit_queue: Any) -> None:
    if not visit(Visit(checkpoint_position, visit_queue)):
      queue_children(checkpoint_position, visit_queue)

  @functools.wraps(restore_saveables)
  def restore_all(self: Any, *args: Any, **kwargs: Any) -> Any:
    restored = restore_saveables(self, *args, **kwargs)
    facts = _facts_of(self)
    left, facts.left = facts.left, []
    for _, restore in sorted(left, key=lambda each: each[0]):
      restore()
    return restored

  restore_lib._queue_children_for_restoration = queue_otherwise
  coordinator.restore_saveables = restore_all


def _facts_of(checkpoint: Any) -> _Facts:
  facts: _Facts = checkpoint.__dict__.setdefault(_ATTRIBUTE, _Facts())
  return facts
