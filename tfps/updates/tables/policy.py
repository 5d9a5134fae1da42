"""Base of policies of tables, which are saved with models."""

import dataclasses
import numbers
from typing import Any

_TOO_LARGE = 1 << 63


@dataclasses.dataclass(frozen=True)
class Policy:
  """Base class of a table's policies: frozen dataclasses Keras can save."""

  def get_config(self) -> dict[str, Any]:
    """Returns the arguments that it was made with."""
    return dataclasses.asdict(self)

  @classmethod
  def from_config(cls, config: dict[str, Any]) -> 'Policy':
    """Makes a policy of what `get_config` has returned.

    Args:
      config: the arguments.
    """
    return cls(**config)

  def _check_positive(self, *names: str) -> None:
    for name in names:
      value = getattr(self, name)
      if not value > 0:  # which NaN is not
        raise ValueError(f'{self}: {name} is positive, not {value}.')
      if value >= _TOO_LARGE:
        raise ValueError(f'{self}: {name} is less than 2^63, not {value}.')

  def _check_whole(self, *names: str) -> None:
    """Refuses all but positive whole numbers; 1e7 becomes an integer."""
    for name in names:
      value = getattr(self, name)
      is_number = isinstance(value, numbers.Real) and not isinstance(
        value, bool
      )
      if not is_number or value % 1 != 0:  # of infinity it is NaN
        raise ValueError(f'{self}: {name} is a whole number, not {value!r}.')
      object.__setattr__(self, name, int(value))
    self._check_positive(*names)
