"""How steady speed is measured and told: from outside, side by side."""

import pathlib
import sys
import time

import psutil
import pytest

from benchmarks import orders
from benchmarks import sides
from benchmarks import steady
from benchmarks import steady_task as task
from benchmarks import usage
from benchmarks import workloads
from tests.support import waiting

_ROOT = pathlib.Path(__file__).parents[3]

# Writes who it is and what it is told, and burns some CPU time in a child.
_PROGRAM = """
import subprocess, sys, time
from benchmarks import orders

burn = 'import time\\nwhile time.process_time() < 0.5: pass\\nprint()\\ninput()'
child = subprocess.Popen(
  [sys.executable, '-c', burn], stdin=subprocess.PIPE, stdout=subprocess.PIPE
)
child.stdout.readline()
folder, task = sys.argv[1:]
for number in orders.numbers_of_steps(folder, task):
  with open(f'{folder}/{task}.told', 'a') as told:
    print(number, file=told)
"""


def _side(program=_PROGRAM, tasks=('worker:0', 'worker:1'), takers=None):
  return sides.ProgramsSide(
    lambda folder: {
      name: sides.Program(
        [sys.executable, '-c', program, folder, name],
        {'PYTHONPATH': str(_ROOT)},
      )
      for name in tasks
    },
    takers or tasks,
  )


def test_programs_share_steps_and_their_children_count():
  with _side() as side:
    turn = steady.take_turn(side, 80)
    pids = side.pids()
    assert usage.tree_cpu_secs(pids.values()) >= 1.0  # two children
    assert usage.tree_cpu_secs([pids['worker:0']]) < (
      usage.tree_cpu_secs(pids.values())
    )
    told = pathlib.Path(side.folder)
    assert [
      (told / f'worker:{i}.told').read_text().split() for i in range(2)
    ] == [['40'], ['40']]
  assert turn.steps == 80
  assert turn.num_bytes is None  # at no known ports
  waiting.until(lambda: not any(map(psutil.pid_exists, pids.values())))


def test_cpu_time_of_children_that_have_ended_is_kept():
  program = (
    'import subprocess, sys\n'
    'burn = "import time\\nwhile time.process_time() < 0.5: pass"\n'
    'subprocess.run([sys.executable, "-c", burn])\n'
  )
  program += _PROGRAM
  with _side(program, tasks=['worker:0']) as side:
    side.run('train', 40)
    assert usage.tree_cpu_secs(side.pids().values()) >= 1.0


def test_a_program_that_takes_no_orders_is_missed_when_it_ends():
  program = (
    'import sys, time\n'
    'if sys.argv[2] == "ps:0": raise SystemExit("no such table")\n'
    'time.sleep(100)\n'
  )
  with (
    _side(program, ['worker:0', 'ps:0'], ['worker:0']) as side,
    pytest.raises(RuntimeError, match=r'ps:0 has ended .* 1:\nno such table'),
  ):
    side.run('train', 40)


@pytest.mark.parametrize(
  ('steps', 'whole'), [(0.0, 40), (59.0, 40), (61.0, 80), (4000.0, 4000)]
)
def test_turns_are_of_whole_executions_of_each_worker(steps, whole):
  assert steady.whole_chunks(steps) == whole


def _turn(rate, num_bytes=None):
  return steady.Turn(100, 100 / rate, 0.5, num_bytes)


def test_each_side_is_told_beside_another_round_by_round():
  turns = {
    task.STOCK: [_turn(10.0, 100_000), _turn(20.0, 100_000)],
    'ours': [_turn(20.0, 50_000), _turn(80.0, 50_000)],
    task.SINGLE: [_turn(50.0), _turn(50.0)],
  }
  table = steady.table('dense', 'A', turns, base=(task.STOCK, 'stock'))
  assert table.columns[2] == 'steps/s, times stock'
  rows = {row[0]: row[1:] for row in table.rows}
  assert rows['ours'] == [
    '50 (20..80)',
    '3 (2..4)',
    '5 (5..5)',
    '1 (1..1)',
    '0.5',
  ]
  assert rows[task.SINGLE][-1] == '-'
  assert table.bars.values == [15.0, 50.0, 50.0]


@pytest.mark.parametrize(
  'model', [workloads.MLP, workloads.CLICKS, workloads.FEATURES]
)
def test_workers_have_batches_of_their_own_and_always_the_same(model):
  mine, others = model.batches(0), model.batches(1)
  assert len(mine) == workloads.NUM_BATCHES
  for (x, y), (same, _), (other, _) in zip(
    mine, model.batches(0), others, strict=True
  ):
    assert len(x) == len(y) == model.batch
    assert (x == same).all()
    assert not (x == other).all()


@pytest.mark.parametrize('model', [workloads.CLICKS, workloads.FEATURES])
def test_ids_are_those_of_the_table_and_most_are_few(model):
  ids = model.batches(0)[0][0]
  assert ids.size == model.batch * model.num_tables
  assert ids.min() >= 0
  assert ids.max() < model.num_rows
  assert (ids < 100).mean() > 0.5


def test_orders_are_done_when_the_next_is_asked_for(tmp_path):
  (tmp_path / 'chief:0.orders').write_text('train 40\nepoch 20\n')
  answers = tmp_path / 'chief:0.answers'
  taken = orders.take(str(tmp_path), 'chief:0')
  assert next(taken) == 'train 40'
  assert answers.read_text() == ''
  assert next(taken) == 'epoch 20'
  assert answers.read_text() == 'done\n'
  assert next(taken, None) is None


def test_a_side_that_works_while_others_have_their_turns_is_refused():
  busy = 'from benchmarks import steady\nwhile True: pass\n'
  with _side(busy, tasks=('worker:0',)) as side:
    time.sleep(0.5)
    with pytest.raises(RuntimeError, match=r'^busy uses .* CPUs while it'):
      steady._check_waits('busy', side)
