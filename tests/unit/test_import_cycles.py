"""No module needs, to be imported, one that needs it."""

import ast
import graphlib
import pathlib

_ROOT = pathlib.Path(__file__).parents[2]


def _name(path):
  parts = path.relative_to(_ROOT).with_suffix('').parts
  return '.'.join(parts[:-1] if parts[-1] == '__init__' else parts)


def _imported(tree, names):
  """The modules of this package that are imported at once."""
  for node in tree.body:
    if isinstance(node, ast.ImportFrom):
      for alias in node.names:
        whole = f'{node.module}.{alias.name}'
        yield whole if whole in names else node.module
    elif isinstance(node, ast.Import):
      yield from (alias.name for alias in node.names)


def test_imports_have_no_cycle():
  paths = {_name(p): p for p in (_ROOT / 'tfps').rglob('*.py')}
  found = {
    name: {
      each
      for each in _imported(ast.parse(path.read_text()), paths)
      if each in paths and each != name
    }
    for name, path in paths.items()
  }
  graphlib.TopologicalSorter(found).prepare()  # which names a cycle
