"""What benchmarks of several variants find, and the page that tells of it."""

import dataclasses
import json

import pytest

from benchmarks import curves
from benchmarks import machine
from benchmarks import overhead
from benchmarks import perceptron
from benchmarks import picture
from benchmarks import report
from benchmarks import runner
from benchmarks import tables
from benchmarks import wire
from benchmarks.network import throughput
from benchmarks.network import time_to_loss
from benchmarks.pages import __main__ as pages


def _table(name='throughput', rate=2.0):
  return tables.Table(
    name,
    'Some links',
    ('variant', 'steps/s'),
    [('stock', '1'), ('ours', f'{rate:g}')],
    tables.Bars('steps/s', [1.0, rate], [4.0, None], 'limit'),
    notes=['A note.'],
  )


def _curves():
  curve = curves.Curve('Async()', [0.0, 1.0, 2.0], [1, 9, 20], [0.7, 0.5, 0.4])
  return curves.Curves('updates-losses', 'Flights', 'updates', 0.5, [curve])


def _write(folder, table, date, *others, quick=False):
  found = report.as_json(
    [table, *others],
    machine.Machine.now(secs=0.01),
    command='python -m benchmarks.network',
    secs=120.0,
    quick=quick,
  )
  report.write_json({**found, 'date': date}, folder)


def _options(folder):
  return [f'--input={folder}', f'--output={folder}']


def test_a_table_is_written_for_people():
  lines = tables.as_text(_table()).splitlines()
  assert lines[1:] == [
    'Some links',
    'variant  steps/s',
    'stock    1',
    'ours     2',
    'A note.',
  ]
  assert '| ours | 2 |' in tables.as_markdown(_table())


def test_a_table_comes_back_from_json():
  table = _table()
  entry = json.loads(json.dumps(dataclasses.asdict(table)))
  assert tables.as_markdown(tables.Table.from_json(entry)) == (
    tables.as_markdown(table)
  )


@pytest.mark.parametrize(
  ('rows', 'bars', 'message'),
  [
    ([('a', 'b')], [1.0], 'has 2 cells, but there are 1 columns'),
    ([('a',)], [1.0, 2.0], '2 bars cannot be drawn for 1 rows'),
  ],
)
def test_tables_that_do_not_fit_are_refused(rows, bars, message):
  with pytest.raises(ValueError, match=message):
    tables.Table('x', 'x', ('variant',), rows, tables.Bars('s', bars))


def test_a_table_is_drawn(tmp_path):
  path = tmp_path / 'throughput.png'
  picture.draw(_table(), path)
  assert path.read_bytes().startswith(b'\x89PNG')


def test_the_page_tells_the_latest_full_run_of_each_table(tmp_path, capsys):
  page = tmp_path / 'performance.md'
  page.write_text('<!-- throughput: begin -->\n<!-- throughput: end -->\n')
  _write(tmp_path, _table(rate=2.0), '2026-01-01T00:00:00')
  _write(tmp_path, _table(rate=3.0), '2026-01-02T00:00:00')
  _write(tmp_path, _table(rate=9.0), '2026-01-03T00:00:00', quick=True)
  assert pages.main(['performance', *_options(tmp_path)]) == 1
  text = page.read_text()
  assert '| ours | 3 |' in text
  assert '`python -m benchmarks.network`, 2026-01-02, 2 minutes' in text
  assert 'tensorflow 2.' in text
  assert 'codecs' in capsys.readouterr().err


def test_ways_to_update_have_a_page_of_their_own(tmp_path):
  page = tmp_path / 'updates.md'
  page.write_text('a\n<!-- updates: begin -->\n<!-- updates: end -->\nb\n')
  _write(tmp_path, _table('updates'), '2026-01-02T00:00:00', _curves())
  assert pages.main(['updates', *_options(tmp_path)]) == 1  # there is no crowd
  text = page.read_text()
  assert '| ours | 2 |' in text
  assert '![Flights](updates-losses.png)' in text
  picture = tmp_path / 'updates-losses.png'
  assert picture.read_bytes().startswith(b'\x89PNG')


@pytest.mark.parametrize(
  ('page', 'table'),
  [
    ('scaling', 'null_step'),
    ('replication', 'hybrid'),
    ('performance', 'dense-mlp'),
    ('performance', 'embedding'),
    ('performance', 'peers-clicks'),
  ],
)
def test_a_table_goes_between_the_marks_of_its_name(tmp_path, page, table):
  path = tmp_path / f'{page}.md'
  path.write_text(f'a\n<!-- {table}: begin -->\n<!-- {table}: end -->\nb\n')
  _write(tmp_path, _table(table), '2026-01-02T00:00:00')
  assert pages.main([page, *_options(tmp_path)]) == 1  # another one is missing
  assert '| ours | 2 |' in path.read_text()


def test_a_curve_tells_when_a_loss_was_first_seen():
  (curve,) = _curves().curves
  assert (curve.secs_to(0.5), curve.steps_to(0.5)) == (1.0, 9)
  assert curve.secs_to(0.3) is None
  assert 'Async(): 0.4000 after 2.0 s and 20 updates' in (
    curves.as_text(_curves())
  )


def test_pages_of_which_nothing_was_measured_stay(tmp_path, capsys):
  _write(tmp_path, _table(), '2026-01-03T00:00:00', quick=True)
  names = ['performance', 'updates']
  assert pages.main([*names, *_options(tmp_path)]) == 1
  assert 'no full run of updates, crowd.' in capsys.readouterr().err
  assert not list(tmp_path.glob('*.md'))


def test_sides_take_turns_and_the_first_round_does_not_count():
  now = [0.0]

  def side(secs):
    def run():
      now[0] += secs * (100 if now[0] < 1.0 else 1)

    return run

  costs = runner.in_turns(
    {'a': side(1.0), 'b': side(2.0), 'c': side(3.0)},
    num_steps=10,
    num_rounds=2,
    clock=lambda: now[0],
  )
  assert costs == {
    'a': pytest.approx([100.0] * 2),
    'b': pytest.approx([200.0] * 2),
    'c': pytest.approx([300.0] * 2),
  }


def test_the_busiest_link_sets_the_limit():
  turn = throughput.Turn(
    steps=10,
    secs=2.0,
    cpu_secs=3.0,
    ps_bytes=(50_000_000, 10),
    worker_bytes=(10, 25_000_000),
  )
  assert turn.steps_per_sec == 5.0
  assert turn.limit == pytest.approx(10.0)  # 5 MB a step, 50 MB a second
  assert turn.busy_cpus == 1.5


def test_the_time_to_a_loss_is_when_it_was_first_seen():
  learnt = time_to_loss.Learnt(
    'x', [(0.0, 8, 0.9), (1.0, 16, 0.5), (3.0, 24, 0.6)], metric=0.7
  )
  assert learnt.secs_to(0.5) == 1.0
  assert learnt.secs_to(0.4) is None
  assert learnt.steps_per_sec == pytest.approx(16 / 3)


@pytest.mark.parametrize(
  ('metric', 'expected'),
  [(0.80, '+0.0%'), (0.796, '-0.5%'), (0.76, '-5.0%, loses more than 1%')],
)
def test_a_loss_of_accuracy_is_marked(metric, expected):
  assert time_to_loss.against(metric, 0.8) == expected


def test_the_parts_of_a_step_add_up_to_it():
  costs = {
    'single process': [1.0, 1.0],
    'stock, unrolled': [9.0, 9.0],
    'nothing': [0.5, 1.0],
    'pull': [2.0, 2.5],
    'pull and compute': [3.0, 4.0],
    'all': [5.0, 7.0],
    'prefetch 1': [4.0, 6.0],
  }
  rows = overhead.rows(costs)
  parts = [each for name, each in rows.items() if name.startswith('- ')]
  assert [sum(each) for each in zip(*parts, strict=True)] == costs['all']


def test_what_the_wire_gives_is_told_by_the_rounds():
  costs = {'stock': [4.0, 8.0], 'stock, unrolled': [2.0, 2.0]}
  costs |= {'single process': [1.0, 1.0], 'fused': [2.0, 2.0]}
  turns = {'between graphs': costs}
  rows = {row[0]: row[1:] for row in wire.table(turns).rows}
  assert rows['between graphs, fused'] == [
    '500 (500..500)',
    '3 (2..4)',
    '0.5 (0.5..0.5)',
  ]
  assert rows['single process'][1:] == ['6 (4..8)', '1 (1..1)']


def test_a_perceptron_knows_its_size():
  model = perceptron.TINY
  variables = model.variables()
  assert len(variables) == model.num_variables
  assert sum(4 * v.shape.num_elements() for v in variables) == model.num_bytes
