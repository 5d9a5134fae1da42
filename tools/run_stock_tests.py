"""Runs TensorFlow's own tests with our classes in the place of TensorFlow's.

Whatever passes with TensorFlow's classes has to pass with ours. The tests are
not in TensorFlow's wheel, nor here: get them from the repository of TensorFlow,
at the tag of the installed version, into a folder. BUILD.md says which.

  pip install dill tblib
  python tools/run_stock_tests.py --tests FOLDER

It prints how many tests pass for each file, with either kind of classes, and
exits with 1 if any passes only with TensorFlow's, but for tests of an error in
what works with ours.
"""

import argparse
import contextlib
import faulthandler
import importlib
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import types

from tfps._utils import processes

# A log message may follow on the same line.
_LINE = re.compile(
  r'\[ +(RUN|OK|FAILED|SKIPPED) +\] (\w+\.\w+?)(?:\b|INFO:|WARNING:)'
)
_NO_ERROR = re.compile(
  r'^FAIL: (\w+) \(__main__\.(\w+)(?:(?!^=====).)*'
  r'^AssertionError: \w+ not raised',
  re.MULTILINE | re.DOTALL,
)
_SETUP = re.compile(r'^ERROR: (setUp\w+ \(\S+\))', re.MULTILINE)
_GRACE_SECS = 30
_DISTRIBUTE = 'tensorflow.python.distribute'
_SHARDED = f'{_DISTRIBUTE}.sharded_variable'
_OURS = {
  f'{_DISTRIBUTE}.parameter_server_strategy_v2.ParameterServerStrategyV2': (
    'tfps.strategies.parameter_server.ParameterServerStrategy'
  ),
  f'{_DISTRIBUTE}.coordinator.cluster_coordinator.ClusterCoordinator': (
    'tfps.training.coordinator.Coordinator'
  ),
  f'{_SHARDED}.ShardedVariable': 'tfps.variables.sharded.ShardedVariable',
  f'{_SHARDED}.FixedShardsPartitioner': (
    'tfps.variables.partitioners.FixedShards'
  ),
  f'{_SHARDED}.MinSizePartitioner': 'tfps.variables.partitioners.MinSize',
  f'{_SHARDED}.MaxSizePartitioner': 'tfps.variables.partitioners.MaxSize',
}

# Tests that something is an error which works with our classes. They must fail
# for want of that error.
_WORKS = {
  'testDatasetPartiallyCreatedOnCoordinator': (
    'a dataset of the coordinator that workers use is sent to them'
  ),
  'test_slicing': 'a tensor is an index of a variable in shards',
}


class Results(dict[str, str]):
  """The last word on each test: OK, FAILED, SKIPPED, or RUN if it hung.

  A test that failed because there was no error which it expects is NO ERROR.
  """

  @property
  def passed(self) -> set[str]:
    return {test for test, word in self.items() if word == 'OK'}

  @property
  def num_run(self) -> int:
    return sum(word != 'SKIPPED' for word in self.values())

  def __str__(self) -> str:
    return f'{len(self.passed)} of {self.num_run} passed'


class View(types.ModuleType):
  """A module with a name replaced.

  TensorFlow's own code must go on to see its own classes, as it names them in
  `super(...)`. What tests set is set in the module itself.
  """

  def __init__(
    self, module: types.ModuleType, name: str, replacement: object
  ) -> None:
    super().__init__(module.__name__)
    self.__dict__.update({name: replacement, '_module': module})

  def __getattr__(self, name: str) -> object:
    return getattr(self._module, name)

  def __setattr__(self, name: str, value: object) -> None:
    setattr(self._module, name, value)


def main() -> int:
  """Runs all files with both kinds of classes."""
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--tests', type=pathlib.Path, required=True)
  parser.add_argument('--only', default='*_test.py', help='file name pattern')
  parser.add_argument('--timeout_secs', type=int, default=900)
  parser.add_argument('--logs', type=pathlib.Path, default='runs/stock_tests')
  args = parser.parse_args()
  args.logs.mkdir(parents=True, exist_ok=True)
  files = sorted(args.tests.glob(args.only))
  if not files:
    parser.error(f'--tests: {args.tests} has no file {args.only}.')
  lost = 0
  for file in files:
    stock, ours = (
      _run(file, classes, args.logs, timeout_secs=args.timeout_secs)
      for classes in ('tensorflow', 'tfps')
    )
    print(f'{file.name}: {stock} with TensorFlow, {ours} with tfps', flush=True)
    lost += _print_differences(stock, ours)
  return min(lost, 1)


def _print_differences(stock: Results, ours: Results) -> int:
  only_stock = stock.passed - ours.passed
  works = {
    test
    for test in only_stock
    if ours.get(test) == 'NO ERROR' and test.rpartition('.')[2] in _WORKS
  }
  for test in sorted(works):
    print(f'  no error with tfps: {test}: {_WORKS[test.rpartition(".")[2]]}')
  for test in sorted(only_stock - works):
    print(f'  fails with tfps only: {test} ({ours.get(test, "not begun")})')
  for test in sorted(set(stock) - stock.passed - only_stock):
    if stock[test] != 'SKIPPED' and test not in ours.passed:
      print(f'  fails with both: {test} ({stock[test]})')
  for test in sorted(ours.passed - stock.passed):
    print(f'  passes with tfps only: {test}')
  return len(only_stock - works)


def _run(
  file: pathlib.Path, classes: str, logs: pathlib.Path, *, timeout_secs: int
) -> Results:
  log = logs / f'{file.stem}.{classes}.log'
  with tempfile.TemporaryDirectory() as folder, log.open('w') as output:
    command = _command(pathlib.Path(folder), file, classes, timeout_secs)
    process = processes.spawn(
      [str(command)],
      env={**os.environ, 'TF_CPP_MIN_LOG_LEVEL': '2'},
      stdout=output,
      stderr=subprocess.STDOUT,
    )
    try:
      process.wait(timeout_secs + _GRACE_SECS)
    finally:
      # A process of a test may outlive it.
      with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
  return _results(log.read_text(errors='replace'))


def _results(log: str) -> Results:
  results = Results()
  for word, test in _LINE.findall(log):
    if not test.endswith('.test_session'):
      results[test] = word
  for name, group in _NO_ERROR.findall(log):
    results[f'{group}.{name}'] = 'NO ERROR'
  for setup in _SETUP.findall(log):
    results[setup] = 'FAILED'
  return results


def _command(
  folder: pathlib.Path, file: pathlib.Path, classes: str, timeout_secs: int
) -> pathlib.Path:
  """An executable that runs the file's tests.

  TensorFlow starts the processes of a test by starting the test's executable
  with other arguments, and takes what ends in .py for none.
  """
  command = folder / file.stem
  own = [sys.executable, __file__, str(command), str(file), classes]
  words = ' '.join(f"'{word}'" for word in [*own, str(timeout_secs)])
  command.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
  command.chmod(0o755)
  return command


def _run_here(
  command: str, file: str, classes: str, timeout_secs: str, *args: str
) -> None:
  if not args:  # else it is a process that a test starts
    faulthandler.dump_traceback_later(int(timeout_secs), exit=True)
  if classes == 'tfps':
    _replace_classes()
  sys.argv = [command, *args]
  # As `runpy.run_path` does, which would set the first of the arguments.
  sys.modules['__main__'] = module = types.ModuleType('__main__')
  module.__file__ = file
  exec(compile(pathlib.Path(file).read_text(), file, 'exec'), module.__dict__)


def _replace_classes() -> None:
  for stock, ours in _OURS.items():
    name, _, stock_class = stock.rpartition('.')
    our_module, _, our_class = ours.rpartition('.')
    our = getattr(importlib.import_module(our_module), our_class)
    _show(importlib.import_module(name), stock_class, our)


def _show(module: types.ModuleType, name: str, value: object) -> None:
  view = View(module, name, value)
  package, _, base_name = module.__name__.rpartition('.')
  sys.modules[module.__name__] = view
  setattr(sys.modules[package], base_name, view)


if __name__ == '__main__':
  if len(sys.argv) > 2 and sys.argv[2].endswith('_test.py'):
    _run_here(*sys.argv[1:])
  else:
    sys.exit(main())
