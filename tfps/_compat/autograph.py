"""AutoGraph for functions of users, and not for this package.

`tf.function` converts the source of each function that it traces, and of each
one that this calls: some 50 milliseconds each, in every process anew. This
package has no Python control flow on tensors. TensorFlow exempts its own
modules by a list that is not public.
"""

from collections.abc import Callable
import functools
from typing import Any

from tensorflow.python.autograph.core import ag_ctx
from tensorflow.python.autograph.core import config
from tensorflow.python.autograph.impl import api

_PACKAGE = 'tfps'


@functools.cache
def take_part() -> None:
  """Exempts this package, unless users' functions are called by `convert`."""
  config.CONVERSION_RULES = (
    config.DoNotConvert(_PACKAGE),
    *config.CONVERSION_RULES,
  )


def enabled() -> Any:
  """Returns a context for a function that is traced with `autograph=False`.

  In it `Strategy.run` converts what it runs, and `next` may be called on an
  iterator more than 32 times.
  """
  return ag_ctx.ControlStatusCtx(status=ag_ctx.Status.ENABLED)


def convert(function: Callable[..., Any]) -> Callable[..., Any]:
  """Returns a user's function as `tf.function` would trace it.

  It is called by this package while that traces a function of its own.
  """
  converted: Callable[..., Any] = api.tf_convert(function, enabled())
  return converted
