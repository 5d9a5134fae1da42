"""Counts of the operations of a graph that may write to a variable.

Branches and loops are graphs of their own, which capture a variable's handle.
"""

from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import auto_control_deps_utils as resources
from tensorflow.python.framework import ops
from tensorflow.python.ops import control_flow_v2_func_graphs as control_flow

_READS = {
  'ReadVariableOp',
  'ResourceGather',
  'ResourceGatherNd',
  'VarIsInitializedOp',
  'VariableShape',
}


def is_in_loop(place: Any, home: Any) -> bool:
  """Returns whether a graph is within a loop of the graph `home`."""
  loops = control_flow.WhileBodyFuncGraph, control_flow.WhileCondFuncGraph
  return any(isinstance(graph, loops) for graph in _up_to(place, home))


def num_writes(variable: Any, place: Any, home: Any) -> int:
  """Returns how many operations up to here may write to a variable.

  Args:
    variable: whose writes are counted.
    place: the innermost graph.
    home: the outermost graph.
  """
  graphs = [*_up_to(place, home), home]
  return sum(len(_writes(_inner(graph, variable))) for graph in graphs)


def num_writes_here(variable: Any) -> int:
  """Returns how many operations may write to a variable or its shards.

  Those of the current graph up to here count, and of the graphs around it that
  it is a branch or loop of.
  """
  place = home = ops.get_default_graph()
  while isinstance(home, control_flow.ControlFlowFuncGraph):
    home = home.outer_graph
  shards = getattr(variable, 'variables', [variable])
  return sum(num_writes(shard, place, home) for shard in shards)


def writes_by_handle(graph: Any) -> dict[int, int]:
  """Returns how many operations may write, by the handle's identity."""
  captured = graph._function_captures.by_val_internal
  return {handle: len(_writes(inner)) for handle, inner in captured.items()}


def is_written_within(variable: Any, place: Any, home: Any) -> bool:
  """Returns whether a complete graph, or one around it, may write to one.

  Args:
    variable: to look for.
    place: the innermost graph.
    home: the outermost graph, which is not considered.
  """
  return any(_writes(_inner(graph, variable)) for graph in _up_to(place, home))


def _up_to(place: Any, home: Any) -> Iterator[Any]:
  while place is not home:
    yield place
    place = place.outer_graph


def _inner(graph: Any, variable: Any) -> Any:
  """Returns the capture of a variable's handle in a graph, or None."""
  return graph._function_captures.by_val_internal.get(id(variable.handle))


def _writes(handle: Any) -> list[Any]:
  if handle is None or handle.dtype != tf.resource:
    return []
  return [op for op in handle.consumers() if not _only_reads(op, handle)]


def _only_reads(operation: Any, handle: Any) -> bool:
  if operation.type in _READS:
    return True
  # Calls, branches and loops know which inputs they write to.
  _, written = resources.get_read_write_resource_inputs(operation)
  return handle not in written
