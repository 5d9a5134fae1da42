"""Docstrings name their subject, and those of the public API are complete."""

import ast
import collections
import importlib
import inspect
import pathlib
import re
import types

import pytest

from tests.support import syntax

_ROOT = pathlib.Path(__file__).parents[3]
_FILES = sorted((_ROOT / 'tfps').rglob('*.py'))
# Pronouns and the like, after which only the body tells what is meant.
_WITHOUT_SUBJECT = re.compile(
  r'(What|Who|Whose|Whom|Whether|Which|Has|Have|Had|Those|That|This|These|It|'
  r'They|Its|Their)\b'
)
_PUBLIC = (
  'tfps',
  'tfps.cluster',
  'tfps.input',
  'tfps.keras',
  'tfps.keras.metrics',
  'tfps.plan',
  'tfps.strategies',
  'tfps.testing',
  'tfps.updates',
  'tfps.variables.partitioners',
  'tfps.variables.placement',
  'tfps.training.hooks',
  'tfps.training.warm_start',
  'tfps.wire.codecs',
)
_KINDS = ast.Module | ast.ClassDef | ast.FunctionDef


def _docstrings(path):
  for node in ast.walk(syntax.parse(path)):
    if isinstance(node, _KINDS) and (text := ast.get_docstring(node)):
      yield getattr(node, 'name', path.stem), text


@pytest.mark.parametrize(
  'path', _FILES, ids=lambda path: str(path.relative_to(_ROOT / 'tfps'))
)
def test_a_docstring_opens_with_its_subject(path):
  wrong = {
    name: text.splitlines()[0]
    for name, text in _docstrings(path)
    if _WITHOUT_SUBJECT.match(text)
  }
  assert not wrong


def _is_public(name):
  return not name.startswith('_')


def _functions_of(kind):
  """A class' own methods, and those that it has of other classes of ours."""
  for base in kind.__mro__:
    if base.__module__.startswith('tfps'):
      for name, member in vars(base).items():
        member = getattr(member, '__func__', member)
        if _is_public(name) and isinstance(member, types.FunctionType):
          yield f'{base.__module__}.{base.__qualname__}.{name}', member


def _public_functions():
  found = {}
  for name in _PUBLIC:
    module = importlib.import_module(name)
    names = getattr(module, '__all__', None) or [
      each
      for each, value in vars(module).items()
      if _is_public(each) and getattr(value, '__module__', '') == name
    ]
    for each in names:
      value = getattr(module, each)
      if inspect.isclass(value):
        found.update(_functions_of(value))
      elif isinstance(value, types.FunctionType):
        found[f'{value.__module__}.{each}'] = value
  return found


def _lacks(name, function):
  """What the docstring of a function does not tell."""
  text = function.__doc__ or ''
  if not text:
    # An overriding method whose contract is the one above.
    owner = name.rsplit('.', 2)[-2]
    return [] if owner[0].isupper() and inspect.getdoc(function) else ['all']
  given = [
    each
    for each in inspect.signature(function).parameters.values()
    if each.name not in ('self', 'cls')
  ]
  lacks = []
  refers = re.search(r'[Ss]ee (`|base class)', text)
  if given and 'Args:' not in text and not refers:
    lacks.append('Args')
  return lacks


def test_public_functions_tell_what_they_take():
  found = _public_functions()
  assert len(found) > 130
  wrong = {name: gap for name, f in found.items() if (gap := _lacks(name, f))}
  assert not wrong


def _base_names(kind):
  for base in kind.bases:
    base = base.value if isinstance(base, ast.Subscript) else base
    name = base.attr if isinstance(base, ast.Attribute) else base.id
    if name not in ('object', 'Generic', 'NamedTuple', 'Protocol'):
      yield name


def _inherits_docstring(name, kind, classes):
  """True if a base class tells of a method, or is none of ours."""
  for base in _base_names(kind):
    ours = [each for each in classes[base] if each is not kind]
    if not ours or any(
      _tells_of(name, each) or _inherits_docstring(name, each, classes)
      for each in ours
    ):
      return True
  return False


def _tells_of(name, kind):
  return any(
    getattr(each, 'name', '') == name and ast.get_docstring(each)
    for each in kind.body
  )


def _without_docstring(owner, name, classes):
  for node in owner.body:
    if not _is_public(getattr(node, 'name', '_')):
      continue
    if isinstance(node, ast.ClassDef):
      yield from _without_docstring(node, f'{name}.{node.name}', classes)
    if not isinstance(node, _KINDS) or ast.get_docstring(node):
      continue
    if any('setter' in ast.unparse(each) for each in node.decorator_list):
      continue
    is_method = isinstance(owner, ast.ClassDef)
    if not is_method or not _inherits_docstring(node.name, owner, classes):
      yield f'{name}.{node.name}'


def test_everything_public_has_a_docstring():
  trees = {path: syntax.parse(path) for path in _FILES}
  classes = collections.defaultdict(list)
  for tree in trees.values():
    for node in ast.walk(tree):
      if isinstance(node, ast.ClassDef):
        classes[node.name].append(node)
  wrong = [
    each
    for path, tree in trees.items()
    for each in _without_docstring(
      tree, str(path.relative_to(_ROOT / 'tfps')), classes
    )
  ]
  assert not wrong
