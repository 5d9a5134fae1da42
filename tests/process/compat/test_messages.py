"""TensorFlow's own messages are hidden, unless somebody asks for them."""

import subprocess
import sys

import pytest

_PROGRAM = """
{imports}
from absl import app

tfps.define_flags()


def main(_):
  cluster = tfps.resolve_cluster()
  strategy = tfps.ParameterServerStrategy(cluster)
  with strategy.scope():
    number = tf.Variable(1.0)
  tf.get_logger().warning('A warning of TensorFlow.')
  tfps.Coordinator(strategy).schedule(tf.function(lambda: number + 1.0)).fetch()
  print('ready', flush=True)


app.run(main)
"""
# Of C++ and of Python, by its logger and by Abseil.
_CPP = 'Started server with target'
_PYTHON = 'Number of GPUs on workers'
_ABSEIL = 'default session config'


@pytest.fixture
def output(tmp_path, monkeypatch):
  monkeypatch.delenv('TF_CPP_MIN_LOG_LEVEL', raising=False)

  def output(imports, *args):
    path = tmp_path / 'program.py'
    path.write_text(_PROGRAM.format(imports=imports))
    done = subprocess.run(
      [sys.executable, str(path), *args],
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
      timeout=120,
      check=True,
    )
    assert 'ready' in done.stdout
    return done.stdout

  return output


@pytest.mark.parametrize(
  'imports',
  [
    'import tensorflow as tf\nimport tfps',
    pytest.param(
      'import tfps\nimport tensorflow as tf', marks=pytest.mark.exhaustive
    ),
  ],
  ids=['after TensorFlow', 'before TensorFlow'],
)
def test_they_are_hidden(output, imports):
  found = output(imports)
  for message in (_CPP, _PYTHON, _ABSEIL):
    assert message not in found
  assert found.count('A warning of TensorFlow.') == 1
  assert 'chief:0 is in the cluster' in found  # ours are not
  assert not found.partition('ready\n')[2]  # the end of the program is silent


@pytest.mark.exhaustive
def test_they_are_brought_back(output, monkeypatch):
  monkeypatch.setenv('TF_CPP_MIN_LOG_LEVEL', '0')
  found = output('import tensorflow as tf\nimport tfps', '--verbosity=0')
  for message in (_CPP, _PYTHON, _ABSEIL):
    assert message in found
  assert found.count('] Stopping workers') == 1
