"""Variables in the object graphs of checkpoints and of programs."""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import dataclasses
import functools
from typing import Any

import tensorflow as tf
from tensorflow.python.checkpoint import checkpoint as checkpoint_lib
from tensorflow.python.trackable import base

# Of `tf.train.Checkpoint` itself: how often it was saved.
_COUNTER = 'save_counter/'

# Gets a checkpoint's path and, for each variable of another shape than there,
# its name, its shape there, and its own; returns the error to raise.
Refusal = Callable[[str, list[tuple[str, list[int], list[int]]]], Exception]


@dataclasses.dataclass(frozen=True, eq=False)
class Saved:
  """Variable that a checkpoint has a value for.

  Attributes:
    key: the value's key in the checkpoint.
    variable: a `tf.Variable` or `ShardedVariable`.
    name: the variable's name, for messages.
  """

  key: str
  variable: Any
  name: str


@dataclasses.dataclass(frozen=True, eq=False)
class Matches:
  """Variables of a checkpoint and of a program, matched by their places.

  Attributes:
    saved: variables in both.
    unused: keys of values that are only in the checkpoint.
    missing: names of variables that are only in the program.
    slots: by identity, for optimizer slots of Keras, the variables that they
      belong to.
  """

  saved: Sequence[Saved]
  unused: Sequence[str]
  missing: Sequence[str]
  slots: dict[int, Any]


def match(path: str, root: Any) -> Matches:
  """Returns the variables that a restore of a checkpoint would restore.

  Args:
    path: of the checkpoint.
    root: the object whose `restore` would be called, or which was saved.

  Raises:
    ValueError: the checkpoint has no object graph.
    tf.errors.OpError: it cannot be read.
  """
  view = tf.train.CheckpointView(path)
  matched = view.match(root)
  saved, unused, slots = [], [], {}
  for node_id, node in enumerate(view._object_graph_proto.nodes):
    found = matched.get(node_id)
    slots.update(_slots(found))
    for attribute in node.attributes:
      variable = variable_of(found)
      is_value = attribute.name == base.VARIABLE_VALUE_KEY
      if attribute.checkpoint_key.startswith(_COUNTER):
        continue
      if variable is None or not is_value:
        unused.append(attribute.checkpoint_key)
      else:
        saved.append(Saved(attribute.checkpoint_key, variable, name_of(found)))
  known = {id(each.variable) for each in saved}
  missing = {
    id(variable): name_of(found)
    for found in tf.train.TrackableView(root).descendants()
    if (variable := variable_of(found)) is not None
    and id(variable) not in known
    and not _is_part(found, known)
  }
  return Matches(saved, unused, list(missing.values()), slots)


def variable_of(trackable: Any) -> Any:
  """Returns the `tf.Variable` or `ShardedVariable` of a trackable, or None."""
  own = getattr(trackable, '_value', trackable)  # Keras'
  kinds = tf.Variable | tf.__internal__.distribute.ShardedVariable
  return own if isinstance(own, kinds) else None


def name_of(variable: Any) -> str:
  """Returns the name of a variable, or the path of one of Keras."""
  shards = getattr(variable, 'variables', None)
  if shards:
    return str(shards[0].name).rpartition('/part_')[0]
  return str(getattr(variable, 'path', variable.name)).partition(':')[0]


def strategy_of(variable: Any) -> Any:
  """Returns the strategy that made a variable, or None."""
  first = getattr(variable, 'variables', [variable])[0]
  return getattr(first, '_distribute_strategy', None)


@functools.cache
def check_shapes(refusal: Refusal) -> None:
  """Refuses to restore variables of ours from values of other shapes.

  With variables on several devices, TensorFlow restores in a function, which
  gives a whole variable a value of another shape than its own without an error,
  and fails at a shard when other variables are restored already.

  Args:
    refusal: makes the error.
  """
  coordinator = checkpoint_lib._CheckpointRestoreCoordinator
  restore = coordinator.restore_saveables

  @functools.wraps(restore)
  def checked(self: Any, *args: Any, **kwargs: Any) -> Any:
    if wrong := list(_mismatches(self)):
      raise refusal(self.save_path_string, wrong)
    return restore(self, *args, **kwargs)

  coordinator.restore_saveables = checked


def _mismatches(
  coordinator: Any,
) -> Iterator[tuple[str, list[int], list[int]]]:
  nodes = coordinator.object_graph_proto.nodes
  for node_id, found in coordinator.object_by_proto_id.items():
    variable = variable_of(found)
    if variable is None or not is_ours(variable) or node_id < 0:
      continue  # `checkpoint_visits` has made negative numbers
    for attribute in nodes[node_id].attributes:
      shape = coordinator.shape_map.get(attribute.checkpoint_key)
      if shape is not None and not variable.shape.is_compatible_with(shape):
        yield name_of(found), shape, variable.shape.as_list()


def is_ours(variable: Any) -> bool:
  """Returns whether one of our strategies made a variable."""
  return hasattr(strategy_of(variable), 'keras_functions')


def _slots(optimizer: Any) -> dict[int, Any]:
  """Returns the variables that slots belong to, by the slots' identities.

  Optimizers of Keras have lists of slots in the order of their variables.
  """
  variables = getattr(optimizer, '_trainable_variables', None)
  if not isinstance(variables, list) or not isinstance(
    optimizer, base.Trackable
  ):
    return {}
  lists = [
    each
    for name, each in vars(optimizer).items()
    if isinstance(each, list)
    and len(each) == len(variables)
    and name not in ('_trainable_variables', '_variables')
  ]
  return {
    id(slot): variable_of(variable)
    for each in lists
    for slot_of, variable in zip(each, variables, strict=True)
    if (slot := variable_of(slot_of)) is not None
  }


def _is_part(trackable: Any, known: set[int]) -> bool:
  """Returns whether a variable is inside of one that is known."""
  container = getattr(trackable, '_sharded_container', lambda: None)()
  return id(container) in known
