"""Variables that each worker has for itself, and that are equal on all."""

from collections.abc import Sequence
import hashlib

import numpy as np
import tensorflow as tf

_DIGEST_BYTES = 7  # which fit in an int64, whatever they are


class LocalState:
  """Variables of this process, kept equal to those of the other workers.

  Attributes:
    variables: variables in the order of creation, the same on all workers.
  """

  def __init__(self) -> None:
    self.variables: list[tf.Variable] = []
    # What a step changes before its gradients are added up, with copies as of
    # the last step that was completed.
    self._kept: dict[int, tuple[tf.Variable, tf.Variable]] = {}
    # All values before the step that is changing them, if one is.
    self._before: list[tf.Variable] = []
    self._is_changing: tf.Variable | None = None

  def has(self, variable: object) -> bool:
    """Returns whether a variable is one of these."""
    return any(variable is each for each in self.variables)

  def keep(self, variable: tf.Variable, value: tf.Tensor) -> None:
    """Assigns a value in a function being traced, as part of a whole step.

    Args:
      variable: one of these, which the step has changed before.
      value: its value after the step.
    """
    key = id(variable)
    if key not in self._kept:
      with tf.init_scope(), tf.device(variable.device):
        copy = tf.Variable(variable.read_value(), trainable=False)
      self._kept[key] = variable, copy
    variable.assign(value)
    self._kept[key][1].assign(value)

  def restore_kept(self) -> None:
    """Undoes what an interrupted step has changed."""
    for variable, copy in self._kept.values():
      variable.assign(copy.read_value())

  def begin_change(self) -> tf.Tensor:
    """Copies all values in a function being traced, before a step changes them.

    A step that does so repeatedly copies those of its beginning.

    Returns:
      A tensor after which they may be changed.
    """
    with tf.init_scope():
      if self._is_changing is None:
        self._is_changing = tf.Variable(initial_value=False, trainable=False)
      for variable in self.variables[len(self._before) :]:
        with tf.device(variable.device):
          value = variable.read_value()
          self._before.append(tf.Variable(value, trainable=False))
    is_changing = self._is_changing
    pairs = list(zip(self._before, self.variables, strict=True))

    def copy() -> tf.Tensor:
      copied = [before.assign(now.read_value()) for before, now in pairs]
      with tf.control_dependencies(copied):
        return tf.constant(value=True)

    copied = tf.cond(is_changing, lambda: tf.constant(value=True), copy)
    with tf.control_dependencies([copied]):
      return tf.identity(is_changing.assign(value=True))

  def end_change(self) -> tf.Tensor:
    """Notes in a function being traced that a step has changed all values.

    Returns:
      A tensor after which that is noted.
    """
    if self._is_changing is None:
      return tf.constant(value=False)
    return tf.identity(self._is_changing.assign(value=False))

  def undo_change(self) -> bool:
    """Undoes a step that was interrupted while it changed values.

    Returns:
      Whether there was one.
    """
    if self._is_changing is None or not self._is_changing.numpy():
      return False
    for before, variable in zip(self._before, self.variables, strict=False):
      variable.assign(before.read_value())
    self._is_changing.assign(value=False)
    return True

  def digest(self) -> int:
    """Returns a hash of the names, shapes and types, not of the values."""
    facts = [(v.name, v.shape.as_list(), v.dtype.name) for v in self.variables]
    found = hashlib.sha256(repr(facts).encode()).digest()
    return int.from_bytes(found[:_DIGEST_BYTES], 'little')

  @property
  def num_packed(self) -> int:
    """The length of the vector that `packed` returns."""
    return -(-sum(self._sizes()) // 4)

  def packed(self) -> np.ndarray:
    """Returns all values as one vector of int32, whatever their types."""
    whole = b''.join(_value(v).numpy().tobytes() for v in self.variables)
    return np.frombuffer(whole + bytes(-len(whole) % 4), np.int32)

  def unpack(self, vector: np.ndarray) -> None:
    """Assigns the values of a vector that another process has packed.

    That process may have further variables, which come last.
    """
    whole, start = vector.tobytes(), 0
    for variable, size in zip(self.variables, self._sizes(), strict=True):
      dtype = variable.dtype.as_numpy_dtype
      flat = np.frombuffer(whole[start : start + size], dtype)
      variable.assign(flat.reshape(variable.shape), read_value=False)
      start += size
    for variable, copy in self._kept.values():
      copy.assign(_value(variable), read_value=False)

  def _sizes(self) -> Sequence[int]:
    return [v.shape.num_elements() * v.dtype.size for v in self.variables]


def _value(variable: tf.Variable) -> tf.Tensor:
  """Returns a variable's value; tapes of a step being traced do not note it."""
  return tf.raw_ops.ReadVariableOp(
    resource=variable.handle, dtype=variable.dtype
  )
