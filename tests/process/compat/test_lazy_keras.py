import subprocess
import sys

import pytest


def _run(program):
  done = subprocess.run(
    [sys.executable, '-c', program], capture_output=True, text=True, timeout=120
  )
  assert done.returncode == 0, done.stderr
  return done.stdout


# Every server that is forked comes by it, too.
@pytest.mark.exhaustive
def test_tensorflow_comes_without_keras_which_comes_when_it_is_used():
  program = """
import sys
from tfps._compat import lazy_keras
lazy_keras.import_tensorflow()
import tensorflow as tf
print([name for name in sys.modules if name.split('.')[0] == 'keras'])
print(tf.add(1, 2).numpy())
from tensorflow.keras import layers
import keras
print(tf.keras.layers.Dense is layers.Dense is keras.layers.Dense)
print(keras.Sequential([keras.layers.Dense(3)])(tf.ones([2, 5])).shape)
"""
  assert _run(program).splitlines() == ['[]', '3', 'True', '(2, 3)']


@pytest.mark.exhaustive
def test_tensorflow_imports_keras_unasked():
  # Else there is nothing to do here, and a server may import it as others do.
  assert _run('import tensorflow, sys; print("keras" in sys.modules)') == (
    'True\n'
  )
