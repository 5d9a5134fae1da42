import gzip

import numpy as np
import pytest
from sklearn import metrics

from tests.support import examples

inputs, rows, synthetic = examples.modules(
  'criteo', 'inputs', 'rows', 'synthetic'
)

_NUMBERS = ['1', '', '-3', *'4567890123']
_IDS = ['68fd1e64', '', *[f'{i:08x}' for i in range(2, 26)]]


def _line(clicked, ids=_IDS):
  return '\t'.join([clicked, *_NUMBERS, *ids]) + '\n'


def _clicks(number, seed=1):
  return synthetic.Clicks(seed).draw(number)


def test_files_of_criteo_are_read(tmp_path):
  path = tmp_path / 'train.txt.gz'
  path.write_bytes(gzip.compress((_line('1') + _line('0')).encode()))
  (part,) = rows.read_tsv(path)
  assert part.clicked.tolist() == [1, 0]
  np.testing.assert_array_equal(
    part.numbers[1], [1, np.nan, -3, *range(4, 10), 0, 1, 2, 3]
  )
  assert part.ids[0].tolist() == [0x68FD1E64, 0, *range(2, 26)]


@pytest.mark.parametrize('wrong', ['68fd1e6', '68fd1e645', '68fd1e6g'])
def test_an_id_of_another_form_is_refused(tmp_path, wrong):
  path = tmp_path / 'train.txt'
  path.write_text(_line('1', [wrong, *_IDS[1:]]))
  with pytest.raises(ValueError, match='8 hexadecimal digits'):
    list(rows.read_tsv(path))


def test_what_is_missing_is_0_in_the_inputs(tmp_path):
  path = tmp_path / 'train.txt'
  path.write_text(_line('0') + _line('1'))
  rows.write_parquet(tmp_path, rows.read_tsv(path), 1)
  held_out = inputs.HeldOut.read(tmp_path)
  assert held_out.clicked.tolist() == [1]
  assert held_out.inputs['numbers'].tolist() == [
    [1, 0, -3, *range(4, 10), 0, 1, 2, 3]
  ]
  assert held_out.inputs['ids'].tolist() == [[0x68FD1E64, 0, *range(2, 26)]]
  assert inputs.count_ids(tmp_path) == 26


def test_the_last_rows_are_held_out(tmp_path):
  given, _ = _clicks(1000)
  parts = [given[i : i + 300] for i in range(0, 1000, 300)]
  rows.write_parquet(tmp_path, parts, 450)
  held_out = inputs.HeldOut.read(tmp_path)
  np.testing.assert_array_equal(held_out.inputs['ids'], given.ids[550:])
  np.testing.assert_array_equal(held_out.clicked, given.clicked[550:])
  table = rows.parquet.read_table(tmp_path / 'train.parquet')
  np.testing.assert_array_equal(table['clicked'], given.clicked[:550])


def test_to_hold_out_all_rows_is_refused(tmp_path):
  with pytest.raises(ValueError, match='none would be left'):
    rows.write_parquet(tmp_path, [_clicks(10)[0]], 10)


def test_synthetic_rows_have_something_to_learn():
  given, clicks = _clicks(50_000)
  assert metrics.roc_auc_score(given.clicked, clicks) == pytest.approx(
    0.82, abs=0.02
  )
  assert given.clicked.mean() == pytest.approx(0.28, abs=0.03)
  assert np.isnan(given.numbers).mean() == pytest.approx(0.2, abs=0.01)
  assert (given.ids == rows.MISSING_ID).mean() == pytest.approx(0.03, abs=0.01)
  assert given.ids.max() < 1 << 32


def test_new_ids_appear_all_the_time():
  clicks = synthetic.Clicks(1)
  before, after = (clicks.draw(20_000)[0].ids.T for _ in range(2))
  known = [np.isin(b, a).mean() for a, b in zip(before, after, strict=True)]
  assert known[0] == 1
  assert min(known) < 0.3  # the newest are the most frequent
  _, counts = np.unique(before[-2], return_counts=True)
  assert (counts == 1).mean() > 0.6


def test_rows_are_the_same_for_the_same_seed():
  first, again, other = (_clicks(100, seed)[0].ids for seed in (1, 1, 2))
  np.testing.assert_array_equal(first, again)
  assert (first != other).any()
