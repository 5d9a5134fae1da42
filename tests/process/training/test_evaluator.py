"""An evaluator that the launcher starts beside a cluster."""

import functools
import json
import pathlib

import tensorflow as tf

from tests.programs import evaluated
from tests.support import commands

_PROGRAM = pathlib.Path(evaluated.__file__)


def test_it_evaluates_what_the_cluster_trains(tmp_path, capfd):
  options = ['--num_ps=2', '--num_evaluators=1', '--grace_secs=60']
  done = commands.launch(capfd, *options, _PROGRAM, tmp_path, cwd=tmp_path)
  assert done.status == 0, done.output
  text = (tmp_path / 'evaluation' / 'evaluations.jsonl').read_text()
  lines = [json.loads(line) for line in text.splitlines()]
  assert [line['step'] for line in lines] == [4, 8]
  best = min(lines, key=lambda line: line['metrics']['loss'])
  kept = tf.train.latest_checkpoint(tmp_path / 'evaluation' / 'best')
  assert _evaluate(kept) == best['metrics']
  for line in lines:
    assert _evaluate(line['checkpoint']) == line['metrics']


@functools.cache
def _model():
  model = evaluated.make_model()
  model.evaluate(evaluated.held_out(), verbose=0)
  return model


def _evaluate(path):
  model = _model()
  status = tf.train.Checkpoint(model=model).restore(path)
  status.assert_existing_objects_matched().expect_partial()
  return model.evaluate(evaluated.held_out(), verbose=0, return_dict=True)
