import pathlib
import re
import subprocess
import sys

import pytest
import tensorflow as tf

_EXAMPLE = pathlib.Path(__file__).parents[2] / 'examples/custom_loop/train.py'


@pytest.mark.slow
def test_a_step_of_ones_own_learns(tmp_path):
  done = subprocess.run(
    [sys.executable, str(_EXAMPLE), '--steps=600', f'--directory={tmp_path}'],
    capture_output=True,
    text=True,
    timeout=120,
  )
  assert done.returncode == 0, done.stderr
  (accuracy,) = re.findall(r'600 steps, held-out accuracy (\S+)', done.stdout)
  assert float(accuracy) > 0.85
  saved = tf.train.load_checkpoint(tmp_path)
  assert saved.get_tensor('global_step/.ATTRIBUTES/VARIABLE_VALUE') == 600
