"""Strategy scopes that a thread has entered but not left."""

import collections

from tensorflow.python.framework import ops


def leave_all() -> bool:
  """Leaves every scope that this thread is in; returns whether there was one.

  An exception that interrupts the exit of a scope, such as a signal handler's,
  leaves it entered in part: every scope that is entered later fails, even
  another strategy's.
  """
  graph = ops.get_default_graph()
  is_within = any(
    (
      graph._distribution_strategy_stack,
      graph._variable_creator_stack,
      # Looking for creators of a type leaves an empty list of them.
      *graph._resource_creator_stack.values(),
    )
  )
  graph._distribution_strategy_stack = []
  graph._variable_creator_stack = []
  graph._resource_creator_stack = collections.defaultdict(list)
  return is_within
