"""Python functions that each process offers to graphs under a fixed name.

`tf.numpy_function` numbers a function in the process that traces it, and the
process that executes the graph looks that number up among its own functions.
A worker's server has none of the client's. What is offered here has the same
name in all processes that offer it, and a server executes its own function.
"""

from collections.abc import Sequence
import functools
import re
import types
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import script_ops

from tfps._compat import error_sources

_PREFIX = 'tfps/'
# The inputs of a function that are a variable's handle and rows, by its token.
_GATHERS: dict[bytes, tuple[int, int]] = {}
_IS_MISSING = re.compile(rf'Could not find callback with key=({_PREFIX}\w+)')


def offer(name: str, function: Any) -> None:
  """Lets graphs that this process executes call a function by its name.

  Args:
    name: a word, the same in all processes.
    function: of a module, which keeps it; TensorFlow's table does not. It gets
      NumPy arrays, and returns a list of them.
  """
  script_ops._py_funcs._funcs[_PREFIX + name] = function


def call(
  name: str, inputs: Sequence[Any], dtypes: Sequence[tf.DType]
) -> list[tf.Tensor]:
  """Calls a function of the process that executes the graph.

  Args:
    name: as it is offered.
    inputs: tensors.
    dtypes: of the results, whose shapes are unknown.
  """
  _explain()
  results: list[tf.Tensor] = tf.raw_ops.PyFunc(
    input=list(inputs), token=_PREFIX + name, Tout=list(dtypes)
  )
  return results


def is_call(node: Any) -> bool:
  """Returns whether a `NodeDef` calls a function that every process offers."""
  token: bytes = node.attr['token'].s
  return token.startswith(_PREFIX.encode())


def gathers(name: str, *, handle: int, rows: int) -> None:
  """Notes that a function returns rows of a variable, as a gather would.

  Args:
    name: as it is offered.
    handle: which of its inputs is the variable's handle.
    rows: which has the numbers of the rows, int64.
  """
  _GATHERS[f'{_PREFIX}{name}'.encode()] = handle, rows


def gather_of(node: Any) -> tuple[int, int] | None:
  """Returns what `gathers` was told of the function of a call, or None.

  Args:
    node: the `NodeDef` of the call.
  """
  return _GATHERS.get(node.attr['token'].s)


def is_missing(error: tf.errors.OpError) -> bool:
  """Returns whether an error says that a task does not offer a function."""
  return _IS_MISSING.search(error.message) is not None


@functools.cache
def _explain() -> None:
  """Explains later errors of processes that do not offer a function."""
  error_sources.explain(tf.errors.InvalidArgumentError, _explained)


def _explained(message: str, frame: types.FrameType) -> str:
  del frame
  found = _IS_MISSING.search(message)
  if not found:
    return message
  return (
    f'The task that executes this does not offer {found[1]!r}, as servers of '
    'this version of tfps do. Start it with tfps.serve, tfps.Server or python '
    f'-m tfps.server, of the same version as this program. ({message})'
  )
