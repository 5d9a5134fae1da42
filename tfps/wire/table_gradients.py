"""Gradients of tables in the form that needs the fewest bytes."""

from typing import Any

import tensorflow as tf

from tfps._compat import gathers
from tfps._compat import graphs
from tfps.wire import chunking
from tfps.wire import push
from tfps.wire import step_transfers as step_transfers_lib


def lean(steps: step_transfers_lib.Steps, variable: Any, gradient: Any) -> Any:
  """Returns a gradient such that no more is sent to the ps than needed.

  TensorFlow makes a dense gradient of lookups in a loop, and of lookups
  together with anything that a ps computes from the whole variable.

  Args:
    steps: the steps being traced.
    variable: an unsharded variable, or one shard, on a ps.
    gradient: its gradient.

  Returns:
    Equal values: `tf.IndexedSlices` of the rows that are not zero, a tensor on
    the ps, or the same gradient.
  """
  is_dense = isinstance(gradient, tf.Tensor)
  if not is_dense or not tf.is_symbolic_tensor(gradient):
    return gradient
  if (chunking.num_bytes(gradient) or 0) <= gathers.FEW_BYTES:
    return gradient
  terms = graphs.terms(gradient)
  if any(getattr(term, 'device', '') == variable.device for term in terms):
    made = _sum_on_ps(variable, terms)
    steps.note_on_ps(variable, made)
    return made
  if steps.is_only_looked_up(variable):
    return _rows_of(gradient)
  return gradient


def _sum_on_ps(variable: Any, terms: list[Any]) -> tf.Tensor:
  """Returns the sum, on the ps, to which only rows are sent."""
  names = {
    id(getattr(term, 'values', term)): push.name_of(variable) for term in terms
  }
  sent = push.send(terms, variable.device, names)
  if len(terms) == 1:
    return terms[0]
  with tf.device(variable.device):
    return tf.add_n([_dense(term, variable.shape[0]) for term in sent])


def _dense(term: Any, num_rows: int) -> tf.Tensor:
  if not isinstance(term, tf.IndexedSlices):
    return term
  return tf.math.unsorted_segment_sum(term.values, term.indices, num_rows)


def _rows_of(gradient: tf.Tensor) -> tf.IndexedSlices:
  axes = list(range(1, gradient.shape.rank))
  rows = tf.where(tf.reduce_any(tf.not_equal(gradient, 0), axis=axes))[:, 0]
  shape = tf.constant(gradient.shape.as_list(), rows.dtype)
  return tf.IndexedSlices(tf.gather(gradient, rows), rows, shape)
