"""Modules are parsed whatever is collected as garbage meanwhile."""

import ast
import gc
import pathlib

import pytest

from tests.support import syntax


class _Reported:
  """Garbage whose finalizer parses, as the report of its error would."""

  def __init__(self):
    self.cycle = self

  def __del__(self):
    def deeper(number):
      return deeper(number - 1) if number else ast.parse('1')

    deeper(7)


@pytest.fixture
def often():
  before = gc.get_threshold()
  gc.set_threshold(700)
  yield
  gc.set_threshold(*before)


@pytest.mark.usefixtures('often')
def test_garbage_that_parses_does_no_harm():
  for _ in range(20):
    _Reported()
    assert syntax.parse(pathlib.Path(ast.__file__)).body
