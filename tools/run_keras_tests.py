"""Runs Keras' own tests with and without tfps in the same process.

What tfps replaces in Keras must show only under its strategies. So whatever
Keras' tests give in a process without tfps they have to give in one where both
strategies have trained a model. The tests are not in Keras' wheel, nor here:
get the tree of the installed version from the repository of Keras. BUILD.md
says what else they need.

  python tools/run_keras_tests.py --keras FOLDER

It prints for each file how many tests there are and how many pass either way,
and exits with 1 if any test gives something else with tfps, or none passes.

It is its own pytest plugin: with `-p run_keras_tests` pytest begins by training
under both strategies.
"""

import argparse
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import importlib.metadata
import inspect
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from typing import Any
from xml.etree import ElementTree

from tfps import _compat
from tfps._utils import processes

_FILES = (
  'backend/common/*_test.py',
  'backend/tensorflow/*_test.py',
  'export/saved_model_test.py',
  'layers/core/embedding_test.py',
  'metrics/*_test.py',
  'optimizers/*_test.py',
  'trainers/**/*_test.py',
)
_SETTINGS = ('conftest.py', 'pyproject.toml')
_NOT_PASSED = ('failure', 'error', 'skipped')  # as JUnit's files say
_TEST_TIMEOUT_SECS = 300
_VERSION = re.compile(r'__version__ = "(.+)"')
_OURS = str(pathlib.Path(_compat.__file__).parent)


class Outcomes(dict[tuple[str, str], str]):
  """passed, skipped, failure or error, by file and name of each test."""

  def of(self, file: str) -> 'Outcomes':
    return Outcomes({key: self[key] for key in self if key[0] == file})

  @property
  def num_passed(self) -> int:
    return sum(outcome == 'passed' for outcome in self.values())


def main() -> int:
  """Runs the tests both ways and compares."""
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--keras', type=pathlib.Path, required=True)
  parser.add_argument('--only', default='', help='part of a file name')
  parser.add_argument('--timeout_secs', type=int, default=1800)
  parser.add_argument('--logs', type=pathlib.Path, default='runs/keras_tests')
  args = parser.parse_args()
  source = args.keras / 'keras' / 'src'
  complaint = _complaint(source)
  if complaint:
    parser.error(f'--keras: {complaint}')
  files = [file for file in _test_files(source) if args.only in file]
  if not files:
    parser.error(f'--only: no file of {source} has {args.only} in its name.')
  logs = args.logs.absolute()
  logs.mkdir(parents=True, exist_ok=True)
  plain, ours = (
    _run(args.keras, files, logs, with_tfps=value, secs=args.timeout_secs)
    for value in (False, True)
  )
  return _report(plain, ours)


def _complaint(source: pathlib.Path) -> str | None:
  """What is wrong with a tree of Keras, if anything."""
  version = source / 'version.py'
  if not version.is_file():
    return f'{version} does not exist. Give a checkout of Keras.'
  found = _VERSION.search(version.read_text())
  installed = importlib.metadata.version('keras')
  if not found or found[1] != installed:
    which = found[1] if found else 'unknown'
    return f'{source} has version {which}, and {installed} is installed.'
  if not any(_test_files(source)):
    return f'{source} has no tests. Get it from the repository, not from PyPI.'
  return None


def _test_files(source: pathlib.Path) -> Iterator[str]:
  for pattern in _FILES:
    for file in sorted(source.glob(pattern)):
      yield str(file.relative_to(source))


def _run(
  keras: pathlib.Path,
  files: Sequence[str],
  logs: pathlib.Path,
  *,
  with_tfps: bool,
  secs: int,
) -> Outcomes:
  name = 'tfps' if with_tfps else 'plain'
  log, found = logs / f'{name}.log', logs / f'{name}.xml'
  found.unlink(missing_ok=True)
  with tempfile.TemporaryDirectory() as folder, log.open('wb') as output:
    _copy(keras, files, pathlib.Path(folder))
    process = processes.spawn(
      _command(found, with_tfps=with_tfps),
      env=_env(folder),
      stdout=output,
      cwd=folder,
    )
    try:
      process.wait(secs)
    except subprocess.TimeoutExpired:
      sys.exit(f'Not done in {secs} s. See {log}.')
    finally:
      with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
  if not found.exists():
    sys.exit(f'pytest ended with {process.returncode}. See {log}.')
  return _outcomes(found)


def _copy(
  keras: pathlib.Path, files: Sequence[str], folder: pathlib.Path
) -> None:
  for name in _SETTINGS:
    shutil.copy(keras / name, folder / name)
  for file in files:
    (folder / file).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(keras / 'keras' / 'src' / file, folder / file)


def _command(found: pathlib.Path, *, with_tfps: bool) -> list[str]:
  return [
    *(
      sys.executable,
      '-m',
      'pytest',
      '-p',
      'no:tfps',
      '-p',
      'no:cacheprovider',
    ),
    *(('-p', pathlib.Path(__file__).stem) if with_tfps else ()),
    # Several files have the same name.
    '--import-mode=importlib',
    f'--timeout={_TEST_TIMEOUT_SECS}',
    '--continue-on-collection-errors',  # of files that need what is missing
    '--override-ini=junit_family=xunit1',  # which names files
    f'--junitxml={found}',
  ]


def _env(folder: str) -> dict[str, str]:
  tools = pathlib.Path(__file__).parent
  return {
    **os.environ,
    'KERAS_BACKEND': 'tensorflow',
    'KERAS_HOME': folder,  # else a user's settings count
    'PYTHONPATH': str(tools.absolute()),
    'TF_CPP_MIN_LOG_LEVEL': '2',
  }


def _outcomes(found: pathlib.Path) -> Outcomes:
  outcomes = Outcomes()
  for case in ElementTree.parse(found).iter('testcase'):
    file = case.get('file') or case.get('name', '').replace('.', '/') + '.py'
    name = f'{case.get("classname", "").split(".")[-1]}.{case.get("name")}'
    words = [child.tag for child in case if child.tag in _NOT_PASSED]
    # A test may fail, and then its teardown too.
    outcomes[file, name] = words[0] if words else 'passed'
  return outcomes


def _report(plain: Outcomes, ours: Outcomes) -> int:
  """Prints a table and what differs; returns the exit status."""
  print(f'{"":54}{"tests":>8}{"plain":>8}{"tfps":>8}')
  for file in sorted({file for file, _ in {**plain, **ours}}):
    _print_line(file, plain.of(file), ours.of(file))
  _print_line('all', plain, ours)
  differing = [
    key for key in {**plain, **ours} if plain.get(key) != ours.get(key)
  ]
  for key in sorted(differing):
    print(f'differs: {" ".join(key)}: {plain.get(key)}, then {ours.get(key)}')
  if not plain.num_passed:
    print('No test passes without tfps, so that there is nothing to compare.')
  return int(bool(differing) or not plain.num_passed)


def _print_line(what: str, plain: Outcomes, ours: Outcomes) -> None:
  num_tests = len({**plain, **ours})
  print(f'{what:54}{num_tests:8}{plain.num_passed:8}{ours.num_passed:8}')


def pytest_sessionstart(session: Any) -> None:
  """Trains a model under both strategies; called by pytest."""
  del session
  # Only now: Keras' conftest.py may have another package to import first.
  import tfps
  from tfps import testing

  with testing.InProcessCluster(num_workers=1, num_ps=1) as servers:
    for make in (tfps.ParameterServerStrategy, tfps.BetweenGraphStrategy):
      strategy = make(servers.cluster)
      _train(strategy)
      strategy.close()
  tfps.embeddings.Table(1)  # replaces what concerns tables
  names = [f'{owner.__name__}.{name}' for owner, name in replaced()]
  print(f'tfps has replaced {len(names)} names:', *sorted(names), sep='\n  ')
  if not names:
    raise RuntimeError('tfps has replaced nothing, so there is nothing to test')


def _train(strategy: Any) -> None:
  import keras
  import numpy as np

  with strategy.scope():
    layers = [keras.layers.Embedding(8, 4), keras.layers.Dense(1)]
    model = keras.Sequential([*layers, keras.layers.Dropout(0.5)])
    model.compile('nadam', 'mse', metrics=['mae'])
  x = np.zeros([8, 1])
  model.fit(x, x, batch_size=4, verbose=0)
  model.evaluate(x, x, verbose=0)
  model.predict(x, verbose=0)


def replaced() -> Iterator[tuple[Any, str]]:
  """Modules and classes of Keras, with names there that are ours."""
  for name, module in list(sys.modules.items()):
    if name.startswith('keras.src'):
      classes = inspect.getmembers(module, inspect.isclass)
      own = [value for _, value in classes if value.__module__ == name]
      for owner in (module, *own):
        for attribute, value in vars(owner).items():
          if _is_ours(value):
            yield owner, attribute


def _is_ours(value: object) -> bool:
  if inspect.isclass(value):
    value = vars(value).get('__init__')
  return inspect.isfunction(value) and value.__code__.co_filename.startswith(
    _OURS
  )


if __name__ == '__main__':
  sys.exit(main())
