"""Runs tests with other versions of TensorFlow and Keras than `make` installs.

  nox                                  # all of the sessions below
  nox -s 'keras(3.10.0)'
  nox -s tensorflow -- tests/unit/compat  # these tests instead

Each session installs its versions from PyPI, into a folder of its own in .nox.
"""

import nox

# Between these ours has to work; each with all that concerns Keras.
_KERAS = ('3.10.0', '3.15.1')
_KERAS_TESTS = (
  'tests/unit/compat',
  'tests/cluster/compat',
  'tests/cluster/keras',
  'tests/cluster/updates',
  'tests/cluster/strategies/test_between_graph.py',
  'tests/process/strategies/test_between_graph.py',
)

# The lowest that pyproject.toml allows, and the one that comes with the suite.
_OLDEST, _NEWEST = 'tensorflow==2.18.*', 'tensorflow==2.21.*'
_TENSORFLOW_TESTS = (
  'tests/unit/compat',
  'tests/cluster/compat',
  'tests/unit/variables/test_sharded.py',
  'tests/cluster/strategies/test_parameter_server.py',
  'tests/cluster/keras/test_fit.py',
)


@nox.session
@nox.parametrize('version', _KERAS, ids=_KERAS)
def keras(session: nox.Session, version: str) -> None:
  """The tests that concern Keras, with its oldest and its newest version."""
  session.install('--editable', '.[tensorboard,test]', _NEWEST)
  # TensorFlow asks for a newer Keras than it needs.
  session.install('--no-deps', f'keras=={version}')
  _test(session, _KERAS_TESTS)


@nox.session
def tensorflow(session: nox.Session) -> None:
  """Some of all tests, with the oldest TensorFlow."""
  session.install('--editable', '.[tensorboard,test]', _OLDEST)
  _test(session, _TENSORFLOW_TESTS)


def _test(session: nox.Session, tests: tuple[str, ...]) -> None:
  session.run('python', '-m', 'pytest', *(session.posargs or tests))
