"""Base of policies of tables, which are saved with models."""

import dataclasses
from typing import Any


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
      if value is not None and value <= 0:
        raise ValueError(f'{self}: {name} is positive, not {value}.')
