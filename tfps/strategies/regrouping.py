"""Repetition of calls in new groups of workers, after some were lost."""

from collections.abc import Callable
from typing import TypeVar

from absl import logging
import tensorflow as tf

from tfps import errors
from tfps.cluster import spec as spec_lib

_Result = TypeVar('_Result')


def call(
  function: Callable[[], _Result],
  task: spec_lib.Task,
  should_retry: Callable[[tf.errors.OpError], bool],
) -> _Result:
  """Calls a function, again in a new group of workers if some are lost.

  Args:
    function: the function.
    task: task of this process.
    should_retry: returns whether to call it again after an error.

  Returns:
    The function's result.

  Raises:
    tf.errors.OpError: an error after which it is not called again; the end of
      its input is one.
  """
  while True:
    try:
      return function()
    except tf.errors.OutOfRangeError:
      raise
    except tf.errors.OpError as error:
      if not should_retry(error):
        raise
      logging.warning(
        '%s goes on in a new group of workers: %s',
        task,
        errors.first_line(error),
      )
