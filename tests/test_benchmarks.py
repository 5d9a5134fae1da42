import json
import pathlib
import subprocess
import sys

import pytest

from benchmarks import report
from benchmarks import runner

_ROOT = pathlib.Path(__file__).parents[1]


def test_a_comparison_gives_the_median_ratio_and_its_spread():
  comparison = runner.Comparison('x', 'ms', ours=[1, 2, 4], stock=[3, 4, 4])
  assert comparison.ratios == [3.0, 2.0, 1.0]
  assert comparison.median_ratio == 2.0
  assert comparison.spread == (1.0, 3.0)
  assert '2.00 (1.00..3.00)' in report.as_text(comparison)


@pytest.mark.parametrize(('ours', 'stock'), [([], []), ([1], [1, 2])])
def test_rounds_that_do_not_match_are_refused(ours, stock):
  with pytest.raises(ValueError, match='cannot be compared'):
    runner.Comparison('x', 'ms', ours=ours, stock=stock)


def test_the_two_sides_take_turns_and_the_first_round_does_not_count():
  now = [0.0]
  turns = []

  def side(name: str, secs: float):
    def run() -> None:
      turns.append(name)
      now[0] += secs * (100 if len(turns) <= 2 else 1)

    return run

  comparison = runner.compare_times(
    'x',
    side('ours', 1.0),
    side('stock', 2.0),
    num_steps=10,
    num_rounds=3,
    clock=lambda: now[0],
  )
  assert turns == ['ours', 'stock'] * 4
  assert comparison.ours == pytest.approx([100.0] * 3)
  assert comparison.median_ratio == pytest.approx(2.0)


@pytest.mark.slow
def test_the_benchmarks_run_and_write_json(tmp_path):
  command = [sys.executable, '-m', 'benchmarks', '--quick']
  done = subprocess.run(
    [*command, f'--output={tmp_path}'],
    cwd=_ROOT,
    capture_output=True,
    text=True,
    timeout=240,
  )
  assert done.returncode == 0, done.stderr
  (path,) = tmp_path.iterdir()
  written = json.loads(path.read_text())
  names = [entry['name'] for entry in written['benchmarks']]
  for name in names:
    assert name in done.stdout
  assert 'null step: coordinator, scalar, 1 worker' in names
  assert 'null step: between graphs, scalar, 1 worker' in names
  assert all(entry['median_ratio'] > 0 for entry in written['benchmarks'])
