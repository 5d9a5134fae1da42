"""Modules of the examples, which import each other by their names alone."""

import collections
import importlib
import pathlib
import sys
import types

FOLDER = pathlib.Path(__file__).parents[2] / 'examples'

# By example and name, those that were imported.
_IMPORTED: dict[str, dict[str, types.ModuleType]] = collections.defaultdict(
  dict
)


def modules(example: str, *names: str) -> list[types.ModuleType]:
  """Imports modules of an example, beside those of others of the same names.

  Args:
    example: name of its folder.
    *names: of the modules.
  """
  folder, own = FOLDER / example, _IMPORTED[example]
  files = [path.stem for path in folder.glob('*.py')]
  others = {name: sys.modules.pop(name, None) for name in files}
  sys.modules.update(own)
  sys.path.insert(0, str(folder))
  try:
    return [importlib.import_module(name) for name in names]
  finally:
    sys.path.remove(str(folder))
    for name, other in others.items():
      mine = sys.modules.pop(name, None)
      if mine is not None:
        own[name] = mine
      if other is not None:
        sys.modules[name] = other
