"""A table on ps:0 of the places and types of a job's shared variables.

All processes of the job read it and only the chief writes. So programs find
shared variables even if they create further ones and place them differently.
"""

import dataclasses
import hashlib
import json

import tensorflow as tf

_DEVICE = '/job:ps/replica:0/task:0/device:CPU:0'
_NAME = 'tfps_directory'


@dataclasses.dataclass(frozen=True)
class Entry:
  """Place and type of a variable.

  Attributes:
    device: device of the ps that holds it.
    dtype: name of its dtype.
    shape: its shape; None for a dimension that may change.
  """

  device: str
  dtype: str
  shape: tuple[int | None, ...]

  def __str__(self) -> str:
    return f'{self.dtype} of shape {self.shape}'


class NameTable:
  """Client of the table in this process.

  Args:
    container: resource container of the variables.
  """

  def __init__(self, container: str = '') -> None:
    with tf.device(_DEVICE):
      self._table = tf.raw_ops.MutableHashTableV2(
        key_dtype=tf.int64,
        value_dtype=tf.string,
        shared_name=_NAME,
        container=container,
      )

  def find(self, name: str) -> Entry | None:
    """Returns the entry of a variable; None if there is none."""
    with tf.device(_DEVICE):
      text: bytes = tf.raw_ops.LookupTableFindV2(
        table_handle=self._table,
        keys=tf.constant(_key(name), tf.int64),
        default_value='',
      ).numpy()
    if not text:
      return None
    facts = json.loads(text)
    return Entry(**{**facts, 'shape': tuple(facts['shape'])})

  def add(self, name: str, entry: Entry) -> None:
    """Adds or replaces the entry of a variable; call it once it has a value.

    Args:
      name: name of the variable.
      entry: its place and type.
    """
    with tf.device(_DEVICE):
      tf.raw_ops.LookupTableInsertV2(
        table_handle=self._table,
        keys=tf.constant(_key(name), tf.int64),
        values=json.dumps(dataclasses.asdict(entry)),
      )


def _key(name: str) -> int:
  """Returns 64 bits for a name: TensorFlow has no string-to-string table."""
  digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
  return int.from_bytes(digest, 'big', signed=True)
