"""Variables that each worker of a HybridStrategy has for itself."""

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

  def has(self, variable: object) -> bool:
    """Returns whether a variable is one of these."""
    return any(variable is each for each in self.variables)

  def digest(self) -> int:
    """Returns a hash of the names, shapes and types, not of the values."""
    facts = [(v.name, v.shape.as_list(), v.dtype.name) for v in self.variables]
    found = hashlib.sha256(repr(facts).encode()).digest()
    return int.from_bytes(found[:_DIGEST_BYTES], 'little')

  def packed(self) -> np.ndarray:
    """Returns all values as one vector of int32, whatever their types."""
    whole = b''.join(v.numpy().tobytes() for v in self.variables)
    return np.frombuffer(whole + bytes(-len(whole) % 4), np.int32)

  def unpack(self, vector: np.ndarray) -> None:
    """Assigns the values of a vector that another process has packed."""
    whole, start = vector.tobytes(), 0
    for variable, size in zip(self.variables, self._sizes(), strict=True):
      dtype = variable.dtype.as_numpy_dtype
      flat = np.frombuffer(whole[start : start + size], dtype)
      variable.assign(flat.reshape(variable.shape))
      start += size

  def _sizes(self) -> Sequence[int]:
    return [v.shape.num_elements() * v.dtype.size for v in self.variables]
