"""The architecture page names rooms, files and functions that exist."""

import ast
import pathlib
import re

import pytest

from tests.support import syntax

_ROOT = pathlib.Path(__file__).parents[3]
_PAGE = (_ROOT / 'docs' / 'architecture.md').read_text()
_PLACES = sorted(set(re.findall(r'`([\w/]+\.py):([\w.]+)`', _PAGE)))
_FILES = sorted(set(re.findall(r'`([\w/]+\.py)`', _PAGE)))


def _names(path):
  """Of classes and functions, with their classes' names before them."""
  found = set()

  def visit(node, prefix):
    for child in ast.iter_child_nodes(node):
      if isinstance(child, ast.ClassDef | ast.FunctionDef):
        found.add(prefix + child.name)
        visit(child, f'{prefix}{child.name}.')

  visit(syntax.parse(path), '')
  return found


def test_it_names_places():
  assert len(_PLACES) > 50


@pytest.mark.parametrize(('file', 'name'), _PLACES)
def test_a_place_exists(file, name):
  assert name in _names(_ROOT / 'tfps' / file)


@pytest.mark.parametrize('file', _FILES)
def test_a_file_exists(file):
  assert (_ROOT / 'tfps' / file).exists() or (_ROOT / file).exists()


def _rooms():
  return {
    path.name + '/' * path.is_dir()
    for path in (_ROOT / 'tfps').iterdir()
    if path.suffix == '.py' or (path / '__init__.py').exists()
  } - {'__init__.py'}


def test_rooms_are_few_and_two_are_private():
  rooms = _rooms()
  assert len(rooms) <= 20
  assert {room for room in rooms if room.startswith('_')} == {
    '_compat/',
    '_utils/',
  }


def test_every_room_is_in_the_table():
  table = _PAGE[
    _PAGE.index('## Rooms') : _PAGE.index('## The way of a cluster')
  ]
  first = re.findall(r'^\| (`[^|]*) \|', table, re.M)
  named = {name for cell in first for name in re.findall(r'`([\w/.]+)`', cell)}
  assert named == _rooms()
