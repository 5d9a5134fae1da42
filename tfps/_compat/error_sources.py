"""Names of the objects that an error of TensorFlow comes from.

TensorFlow's errors name devices and operations alone. When an error is made,
frames of the program still have the objects, whose names users know.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
import re
import sys
import types
from typing import Any

import tensorflow as tf

# From the one that makes an error to the one that has the operation's inputs.
_FRAMES_TO_INPUTS = 3

_UNPARSED = 'Unable to parse request'  # says gRPC
# Below the node that failed, which has braces, the text has those that called
# it. The op of an iterator is among them if a function of its dataset failed.
_CALLED_BY_ITERATOR = re.compile(r'\[\[(?!\{\{)[^]]*IteratorGetNext')
_NO_FILE = 'No such file or directory'

# Gets the error's text and the frame that makes it; returns another text.
Explanation = Callable[[str, types.FrameType], str]


def explain(kind: Any, explanation: Explanation) -> None:
  """Explains all later errors of a class.

  Args:
    kind: a class of `tf.errors`.
    explanation: of such an error.
  """
  init = kind.__init__

  # With the names that it has, by which errors are copied.
  def explained(
    self: Any, node_def: Any, op: Any, message: Any, *args: Any
  ) -> None:
    message = explanation(str(message), sys._getframe(1))
    init(self, node_def, op, message, *args)

  kind.__init__ = explained


def inputs(frame: types.FrameType | None) -> Iterator[Any]:
  """Yields the inputs of the operation whose error a frame is raising."""
  for _ in range(_FRAMES_TO_INPUTS):
    if frame is None:
      return
    for value in frame.f_locals.values():
      yield from value if isinstance(value, list | tuple) else [value]
    frame = frame.f_back


def users(frame: types.FrameType | None) -> list[str]:
  """Returns the names of the Keras objects whose methods are being executed."""
  keras = sys.modules.get('keras')
  if keras is None:
    return []
  kinds = keras.Layer, keras.Variable, keras.Metric, keras.utils.FeatureSpace
  found = {
    f'{type(user).__name__} {_name(user)!r}': None
    for user in _selves(frame, kinds)
  }
  return list(found)


def variables(frame: types.FrameType | None) -> list[tf.Variable]:
  """Returns the variables that are in use, each once.

  These are those whose methods are being executed, and inputs of the operation
  whose error a frame is raising.
  """
  owners = [
    getattr(value, '_parent_trackable', lambda: None)()
    for value in inputs(frame)
    if isinstance(value, tf.__internal__.EagerTensor)
  ]
  found = {
    id(variable): variable
    for variable in [*_selves(frame, tf.Variable), *owners]
    if isinstance(variable, tf.Variable) and _name(variable)
  }
  return list(found.values())


def names(variables: Iterable[tf.Variable]) -> list[str]:
  """Returns phrases that name variables, each once."""
  return list(dict.fromkeys(f'the variable {_name(v)!r}' for v in variables))


def _name(user: Any) -> str:
  """Returns an object's name; it has none yet while it is being made."""
  return str(getattr(user, 'path', None) or getattr(user, 'name', ''))


def _selves(frame: types.FrameType | None, kinds: Any) -> list[Any]:
  """Returns the objects of some types whose methods are being executed."""
  found: dict[int, Any] = {}
  while frame is not None:
    user = frame.f_locals.get('self')
    if isinstance(user, kinds):
      found[id(user)] = user
    frame = frame.f_back
  return list(found.values())


def is_of_dataset(error: tf.errors.OpError) -> bool:
  """Returns whether a function of a dataset has failed because of its data.

  A lost task makes such functions fail, too, but with other errors.
  """
  about_data = tf.errors.InvalidArgumentError, tf.errors.UnknownError
  if not isinstance(error, about_data) and _NO_FILE not in error.message:
    return False
  return _CALLED_BY_ITERATOR.search(error.message) is not None


def is_garbled_request(error: tf.errors.OpError) -> bool:
  """Returns whether an error says that a server could not parse a request.

  While one thread calls a function, another that calls a new one may move what
  the runtime knows of it: `EagerClusterFunctionLibraryRuntime::Run` keeps a
  pointer into a vector that grows. The request is then made of freed memory.
  """
  is_internal = isinstance(error, tf.errors.InternalError)
  return is_internal and _UNPARSED in error.message
