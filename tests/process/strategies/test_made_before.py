"""What a program made before the strategy works, or says what it is."""

import pathlib

import pytest

from tests.support import commands
from tests.support import turns

_PROGRAM = pathlib.Path(__file__).parents[2] / 'programs/made_before.py'
_WORKS = {
  'dataset': '[0, 16]',
  'fit': 'done',
  'mapped': '4.0',
  'normalization': '0.0',
  'plain function': '1.0',
}
_NAMED = {
  'variable': "the variable 'old:0'",
  'function': "the variable 'old:0'",
  'iterator': 'an iterator',
  'generator': 'a dataset with Python code',
  'lookup': "a StaticHashTable of the layer 'lookup'",
  'lookup in a dataset': "a StaticHashTable of the layer 'lookup'",
  'dataset with lookup': 'It is used by <_MapDataset element_spec=',
  'feature space': "a StaticHashTable of the layer 'word_preprocessor'",
  'lookup in a model': "a StaticHashTable of the layer 'lookup'",
  'model.fit': "in Mean 'loss', in Sequential 'sequential'.",
  'model.predict': "the variable 'sequential/dense/kernel:0'",
}


# Of its own, as a process that has connected makes nothing before.
@pytest.mark.parametrize(
  'strategy',
  turns.rarely(
    ['ParameterServerStrategy', 'BetweenGraphStrategy'],
    but=['ParameterServerStrategy'],
  ),
)
def test_it_works_or_is_named(strategy):
  ended = commands.run(_PROGRAM, strategy)
  assert ended.status == 0, ended.output[-3000:]
  lines = ended.output.splitlines()
  shown = dict(line.split(': ', 1) for line in lines if ': ' in line)
  assert {what: shown.get(what) for what in _WORKS} == _WORKS
  for what, name in _NAMED.items():
    assert 'Made before the strategy' in shown[what], what
    assert name in shown[what]
    assert 'Make the strategy first' in shown[what]
