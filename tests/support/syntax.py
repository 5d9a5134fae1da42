"""Syntax trees of modules."""

import ast
import gc


def parse(path):
  """Returns the syntax tree of a module.

  Parsing fails in CPython 3.11 if the garbage collector runs a finalizer
  meanwhile whose error is reported: to format that parses source as well.
  """
  was_enabled = gc.isenabled()
  gc.disable()
  try:
    return ast.parse(path.read_text())
  finally:
    if was_enabled:
      gc.enable()
