"""Where the shared variables of a job are, and of which type.

Kept in a table on ps:0 that all processes of the job read and the chief alone
writes. So programs need not place variables alike to find them: a process that
makes further variables of its own disturbs nobody.
"""

import dataclasses
import hashlib
import json

import tensorflow as tf

_DEVICE = '/job:ps/replica:0/task:0/device:CPU:0'
_NAME = 'tfps_directory'


@dataclasses.dataclass(frozen=True)
class Entry:
  """What is known of a variable.

  Attributes:
    device: of the ps that holds it.
    dtype: by its name.
    shape: None for a dimension that may change.
  """

  device: str
  dtype: str
  shape: tuple[int | None, ...]

  def __str__(self) -> str:
    return f'{self.dtype} of shape {self.shape}'


class NameTable:
  """The table, as this process reaches it.

  Args:
    container: that of the variables.
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
    """The variable of that name, if there is one."""
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
    """Takes in a variable that has its value, or replaces what was said."""
    with tf.device(_DEVICE):
      tf.raw_ops.LookupTableInsertV2(
        table_handle=self._table,
        keys=tf.constant(_key(name), tf.int64),
        values=json.dumps(dataclasses.asdict(entry)),
      )


def _key(name: str) -> int:
  """64 bits for a name: TensorFlow has no table from strings to strings."""
  digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
  return int.from_bytes(digest, 'big', signed=True)
