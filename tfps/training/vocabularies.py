"""Vocabularies of tables, whose rows move where tokens get other numbers."""

import collections
from collections.abc import Sequence
import dataclasses
import os
from typing import Any

import numpy as np
import tensorflow as tf

_Tokens = Sequence[Any] | str | os.PathLike[str]
_NAMED = 10  # names that a message has


@dataclasses.dataclass(frozen=True, eq=False)
class Vocabulary:
  """Tokens of a table's rows, in a checkpoint and in this program.

  A vocabulary is a sequence whose token i belongs to row i, or the path of a
  text file with a token in each line. That of a Keras `StringLookup` or
  `IntegerLookup` is its `get_vocabulary()`, which includes the rows for what is
  missing or unknown. Rows after the last token keep their initial values.

  Attributes:
    variable: the table: a `tf.Variable` or `keras.Variable`.
    old: the vocabulary of the checkpoint.
    new: the vocabulary of this program.
  """

  variable: Any
  old: _Tokens
  new: _Tokens


def row_moves(
  vocabulary: Vocabulary,
  name: str,
  old_shape: Sequence[int],
  new_shape: Sequence[int],
) -> np.ndarray:
  """Returns for each token of the old vocabulary its new row, or -1.

  Args:
    vocabulary: of the table.
    name: of the table, for errors.
    old_shape: the table's shape in the checkpoint.
    new_shape: that in this program.

  Returns:
    int64 of shape [old tokens].

  Raises:
    ValueError: a vocabulary does not fit its shape, has a token twice, or the
      two have none in common.
  """
  old = _tokens(vocabulary.old, name, old_shape[:1], 'old')
  new = _tokens(vocabulary.new, name, new_shape[:1], 'new')
  rows = {token: row for row, token in enumerate(new)}
  moves = np.array([rows.get(token, -1) for token in old], np.int64)
  if not (moves >= 0).any():
    raise ValueError(
      f'Vocabulary of {name}: none of the {len(old)} old tokens '
      f'({some(old, 3)}) is among the {len(new)} new ones ({some(new, 3)}).'
    )
  return moves


def some(names: Sequence[str], number: int = _NAMED) -> str:
  """Returns the first names, and how many more there are.

  Args:
    names: the names.
    number: how many to name.
  """
  more = len(names) - number
  return ', '.join(names[:number]) + (f' and {more} more' if more > 0 else '')


def _tokens(
  given: _Tokens, name: str, rows: Sequence[int], which: str
) -> list[str]:
  """Returns the tokens of a vocabulary.

  Raises:
    ValueError: there are more than rows, or some are equal.
  """
  if isinstance(given, str | os.PathLike):
    with tf.io.gfile.GFile(os.fspath(given), 'r') as file:
      found = [line.rstrip('\r\n') for line in file]
  else:
    found = [
      token.decode() if isinstance(token, bytes) else str(token)
      for token in given
    ]
  if len(found) > (rows[0] if rows else 0):
    raise ValueError(
      f'Vocabulary of {name}: the {which} one has {len(found)} tokens, and the '
      f'table has {rows[0] if rows else "no"} rows.'
    )
  if len(set(found)) < len(found):
    (twice, _), *_ = collections.Counter(found).most_common(1)
    raise ValueError(
      f'Vocabulary of {name}: the {which} one has {twice!r} more than once.'
    )
  return found
