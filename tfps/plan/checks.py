"""Checks of numbers and dtypes in user options."""

import math
from typing import Any

import numpy as np


def positive(name: str, value: Any, *, or_zero: bool = False) -> None:
  """Raises ValueError unless the value is a finite number above 0."""
  is_number = isinstance(value, int | float) and not isinstance(value, bool)
  is_enough = is_number and (value >= 0 if or_zero else value > 0)
  if is_enough and math.isfinite(value):
    return
  least = '0 or more' if or_zero else 'more than 0'
  raise ValueError(f'{name} is {value!r}. Give a number, {least}.')


def whole(name: str, value: Any, *, at_least: int) -> None:
  """Raises ValueError unless the value is an int that is large enough."""
  is_int = isinstance(value, int) and not isinstance(value, bool)
  if not is_int or value < at_least:
    raise ValueError(f'{name} is {value!r}. Give at least {at_least}.')


def floating(name: str, value: Any) -> None:
  """Raises ValueError unless the value names one of NumPy's floating types."""
  try:
    kind = np.dtype(value).kind
  except TypeError:
    kind = ''
  if kind != 'f':
    raise ValueError(
      f'{name} is {value!r}. Give float16, bfloat16, float32 or float64.'
    )
