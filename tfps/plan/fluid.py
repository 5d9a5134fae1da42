"""Max-min fair sharing of links among flows, which TCP approximates.

No flow's rate can be raised without lowering that of a flow that is not faster
(D. Bertsekas, R. Gallager, "Data networks", 1992, section 6.5.2).
"""

from collections.abc import Sequence

import numpy as np


class Network:
  """Flows over links of given rates.

  Args:
    rates: rates of the links, in bytes per second.
    paths: for each flow, the indices of the links that it passes.
    max_rates: maximum rate of each flow, in bytes per second.
  """

  def __init__(
    self,
    rates: Sequence[float],
    paths: Sequence[Sequence[int]],
    max_rates: Sequence[float],
  ) -> None:
    longest = max((len(path) for path in paths), default=0)
    # An additional link without a limit pads all paths to equal length.
    self._rates = np.array([*rates, np.inf])
    none = len(rates)
    self._paths = np.array(
      [[*path, *([none] * (longest - len(path)))] for path in paths], np.int64
    ).reshape(len(paths), longest)
    self._max_rates = np.asarray(max_rates, np.float64)

  def share(self, active: np.ndarray) -> np.ndarray:
    """Returns the rates of all flows, in bytes per second.

    Args:
      active: booleans of shape [flows]; inactive flows get rate 0.
    """
    found = np.zeros(len(self._paths))
    left = self._rates.copy()
    open_ = np.flatnonzero(active)
    while open_.size:
      paths = self._paths[open_]
      number = np.bincount(paths.ravel(), minlength=left.size)
      with np.errstate(divide='ignore', invalid='ignore'):
        shares = np.where(number > 0, left / number, np.inf)
      shares[-1] = np.inf
      possible = np.minimum(
        shares[paths].min(axis=1, initial=np.inf), self._max_rates[open_]
      )
      least = possible.min()
      # The rate of the slowest flows is final; so are those close to it.
      is_settled = possible <= least * (1 + 1e-6)
      settled = open_[is_settled]
      found[settled] = possible[is_settled]
      taken = np.bincount(
        self._paths[settled].ravel(),
        weights=np.repeat(found[settled], self._paths.shape[1]),
        minlength=left.size,
      )
      left[:-1] = np.maximum(left[:-1] - taken[:-1], 0)
      open_ = open_[~is_settled]
    return found
