"""Examples and pages use names that `import tfps` offers."""

import ast
import pathlib
import re

import pytest

import tfps

_ROOT = pathlib.Path(__file__).parents[3]
_BLOCK = re.compile(r'^( *)```python\n(.*?)^\1```', re.M | re.S)


def _programs():
  for path in sorted((_ROOT / 'examples').rglob('*.py')):
    yield path, path.read_text()
  for path in [_ROOT / 'README.md', *sorted((_ROOT / 'docs').glob('*.md'))]:
    for i, (indent, text) in enumerate(_BLOCK.findall(path.read_text())):
      yield f'{path}, block {i}', re.sub(f'^{indent}', '', text, flags=re.M)


def _names(tree):
  """The names of `tfps` in a program, and those that it imports itself."""
  used, imported = set(), set()
  for node in ast.walk(tree):
    if isinstance(node, ast.Attribute) and ast.unparse(node.value) == 'tfps':
      used.add(node.attr)
    if isinstance(node, ast.Import):
      parts = [alias.name.split('.') for alias in node.names]
      imported |= {part[1] for part in parts if part[0] == 'tfps' and part[1:]}
  return used, imported


def test_they_are_public():
  all_used = set()
  for where, text in _programs():
    used, imported = _names(ast.parse(text))
    assert used - imported <= set(tfps.__all__), where
    all_used |= used
  assert len(all_used) > 20


@pytest.mark.parametrize('name', tfps.__all__)
def test_what_is_public_is_there(name):
  assert getattr(tfps, name) is not None
