"""What each worker of a hybrid has of its own, alike in all of them."""

from collections.abc import Sequence
import hashlib

import numpy as np
import tensorflow as tf

_DIGEST_BYTES = 7  # which fit in an int64, whatever they are


class LocalState:
  """Variables of this process, of which others have their own.

  Attributes:
    variables: in the order in which they were made, which is that of all
      workers.
  """

  def __init__(self) -> None:
    self.variables: list[tf.Variable] = []

  def has(self, variable: object) -> bool:
    """Whether it is one of those."""
    return any(variable is each for each in self.variables)

  def digest(self) -> int:
    """Tells these variables from others, not their values."""
    facts = [(v.name, v.shape.as_list(), v.dtype.name) for v in self.variables]
    found = hashlib.sha256(repr(facts).encode()).digest()
    return int.from_bytes(found[:_DIGEST_BYTES], 'little')

  def packed(self) -> np.ndarray:
    """All values as one vector of int32, whatever their types."""
    whole = b''.join(v.numpy().tobytes() for v in self.variables)
    return np.frombuffer(whole + bytes(-len(whole) % 4), np.int32)

  def unpack(self, vector: np.ndarray) -> None:
    """Takes over the values that another process has packed."""
    whole, start = vector.tobytes(), 0
    for variable, size in zip(self.variables, self._sizes(), strict=True):
      dtype = variable.dtype.as_numpy_dtype
      flat = np.frombuffer(whole[start : start + size], dtype)
      variable.assign(flat.reshape(variable.shape))
      start += size

  def _sizes(self) -> Sequence[int]:
    return [v.shape.num_elements() * v.dtype.size for v in self.variables]
