"""What a function keeps on the task that executes it."""

import dataclasses

import tensorflow as tf

from tfps.wire import residuals as residuals_lib
from tfps.wire import traffic as traffic_lib


@dataclasses.dataclass(frozen=True)
class Workspace:
  """To be made while the function is being traced.

  Attributes:
    accounts: count the bytes that cross; None if nobody does.
    residuals: what codecs have left to be sent later.
  """

  accounts: traffic_lib.Traffic | traffic_lib.Running | None
  residuals: residuals_lib.Residuals = dataclasses.field(
    default_factory=residuals_lib.Residuals
  )

  def counted(self) -> tf.Tensor:
    """The bytes that have crossed; int64 of shape [2, num_ps]."""
    if not isinstance(self.accounts, traffic_lib.Traffic):
      raise TypeError(f'{self.accounts} do not count one function only.')
    return self.accounts.end()
