"""Tests of many cases in several ways each, of which not all need be run."""

from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import pytest


def rarely(cases: Sequence[Any], *, but: Sequence[Any] = ()) -> list[Any]:
  """The cases for `pytest.mark.parametrize`, all exhaustive but some."""
  missing = [case for case in but if case not in cases]
  if missing:
    raise ValueError(f'{missing} are none of the cases.')
  return [
    case
    if case in but
    else pytest.param(
      *(case if isinstance(case, tuple) else (case,)),
      marks=pytest.mark.exhaustive,
    )
    for case in cases
  ]


def by_turns(
  cases: Mapping[str, Any],
  ways: Mapping[str, Sequence[Any]],
  *,
  rarely: Collection[str] = (),
) -> list[Any]:
  """Each case in one of the ways, which take turns; else with --exhaustive.

  Args:
    cases: by name.
    ways: the values of each way, by its name.
    rarely: the names of cases that are exhaustive in every way.

  Returns:
    What `pytest.mark.parametrize` takes for the values of a way and a case.
  """
  if missing := set(rarely) - set(cases):
    raise ValueError(f'{missing} are none of the cases.')
  return [
    pytest.param(
      *way,
      case,
      id=f'{way_name}-{name}',
      marks=[]
      if turn % len(ways) == place and name not in rarely
      else [pytest.mark.exhaustive],
    )
    for turn, (name, case) in enumerate(cases.items())
    for place, (way_name, way) in enumerate(ways.items())
  ]
