"""Traced functions: what they capture and run, and their removal from servers.

TensorFlow lets a function capture a tensor of a function that has been traced
before, and fails when it is called.

A function that nothing refers to any more is removed from all servers by its
`__del__`, at any moment and in any thread. The call waits for each server and
keeps the interpreter's lock meanwhile: if a task is frozen, this process stands
still, and with it whatever would notice. To register a function waits as well,
but is done where functions are traced. So that is where others are removed now.
"""

import collections
import functools
import types
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.eager.polymorphic_function import tf_method_target
from tensorflow.python.util import tf_decorator

# Of functions to remove: the scope that has it, and its name.
_unused: collections.deque[tuple[int, bytes]] = collections.deque()


@functools.cache
def remove_late() -> None:
  """Removes functions from servers no sooner than the next is registered.

  Repeated calls do nothing.
  """
  remove = context.Context.remove_function

  def remove_unused(self: Any) -> None:
    for _ in range(len(_unused)):
      try:
        scope, name = _unused.popleft()
      except IndexError:  # another thread has removed it
        return
      if scope == self.function_scope_id and self.has_function(name):
        remove(self, name)

  def remove_function(self: Any, name: bytes) -> None:
    if self._server_def is None:
      remove(self, name)
    else:
      # No lock: the garbage collector may call this in any function.
      _unused.append((self.function_scope_id, name))

  def after_removal(register: Any) -> Any:
    @functools.wraps(register)
    def registering(self: Any, function: Any) -> None:
      remove_unused(self)
      register(self, function)

    return registering

  context.Context.remove_function = remove_function
  for name in ('add_c_function', 'add_function_def'):
    register = getattr(context.Context, name)
    setattr(context.Context, name, after_removal(register))


def foreign_captures() -> list[Any]:
  """Returns the tensors of other functions that the one being traced captures.

  Those of the functions around it are no others.
  """
  graph: Any = tf.compat.v1.get_default_graph()
  if not isinstance(graph, tf.__internal__.FuncGraph):
    return []
  captured, around = graph.external_captures, []
  while isinstance(graph, tf.__internal__.FuncGraph):
    graph = graph.outer_graph
    around.append(graph)
  return [
    tensor
    for tensor in captured
    if tf.is_symbolic_tensor(tensor)
    and not any(tensor.graph is each for each in around)
  ]


def python_function(function: Any) -> Any:
  """Returns what a `tf.function` traces; another function as it is.

  A function that is being traced calls it in place of the `tf.function`, whose
  operations would be in a graph of their own. One that XLA compiles stays.

  Args:
    function: any function.
  """
  if not isinstance(function, tf.types.experimental.PolymorphicFunction):
    return function
  if function._jit_compile:
    return function
  found = function.python_function
  # That of a method has a stand-in for the object, which AutoGraph would call.
  _, target = tf_decorator.unwrap(found)
  stand_in = getattr(target, '__self__', None)
  if isinstance(stand_in, tf_method_target.TfMethodTarget):
    found = types.MethodType(target.__func__, stand_in.target)
  if function._autograph:
    return found
  return tf.autograph.experimental.do_not_convert(found)
