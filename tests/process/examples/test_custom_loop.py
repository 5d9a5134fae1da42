import pathlib
import re

import pytest
import tensorflow as tf

from tests.support import commands

_EXAMPLE = pathlib.Path(__file__).parents[3] / 'examples/custom_loop/train.py'


def test_a_step_of_ones_own_learns():
  done = commands.run(_EXAMPLE, '--steps=600')
  assert done.status == 0, done.output
  (accuracy,) = re.findall(r'600 steps, held-out accuracy (\S+)', done.output)
  assert float(accuracy) > 0.85


@pytest.mark.exhaustive
def test_it_saves_checkpoints(tmp_path):
  done = commands.run(_EXAMPLE, '--steps=600', f'--directory={tmp_path}')
  assert done.status == 0, done.output
  saved = tf.train.load_checkpoint(tmp_path)
  assert saved.get_tensor('global_step/.ATTRIBUTES/VARIABLE_VALUE') == 600
