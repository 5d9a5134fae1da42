"""What a function keeps on the task that executes it."""

from tfps.wire import accounts
from tfps.wire import residuals


class Workspace:
  """To be made while the function is being traced.

  Args:
    num_ps: how many ps there are.

  Attributes:
    accounts: count the bytes that cross.
    residuals: what codecs have left to be sent later.
  """

  def __init__(self, num_ps: int) -> None:
    self.accounts = accounts.Accounts(num_ps)
    self.residuals = residuals.Residuals()
