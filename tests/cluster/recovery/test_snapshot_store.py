"""Cuts on disk: whole, damaged, of other shapes, and where none can be."""

import json
import os
import shutil
import stat
import threading

import numpy as np
import pytest
import tensorflow as tf

from tests.support import waiting
import tfps
from tfps import errors
from tfps import testing
from tfps.testing.chaos import disks
from tfps.variables import partitioners

pytestmark = pytest.mark.tfps_cluster(workers=1, ps=2)


@pytest.fixture
def make(tfps_cluster, tmp_path):
  def make_strategy(partitioner=None, **recovery):
    recovery = {'directory': tmp_path / 'cuts', 'every_secs': 3600, **recovery}
    return tfps.ParameterServerStrategy(
      tfps_cluster.cluster, partitioner, recovery=tfps.Recovery(**recovery)
    )

  return make_strategy


_BACKGROUND = {'tfps-recovery', 'tfps-replicas', 'tfps-requests'}
TABLE = np.arange(14, dtype=np.float32).reshape(7, 2)


def variables(strategy, scale=1):
  with strategy.scope():
    return [
      tf.Variable(scale * TABLE, name='table'),
      tf.Variable(scale * 3, dtype=tf.int64, name='count', trainable=False),
      tf.Variable(b'a' * scale, name='word', trainable=False),
      tf.Variable(scale * 1.5, name='count'),
    ]


def assert_same(made, scale):
  table, count, word, other = made
  np.testing.assert_array_equal(table.numpy(), scale * TABLE)
  assert count.numpy() == scale * 3
  assert word.numpy() == b'a' * scale
  assert other.numpy() == scale * 1.5


def cut(strategy):
  strategy.guard.snapshotter.save()
  return strategy.guard.snapshotter.latest.path


def folders(tmp_path):
  found = [path.name for path in (tmp_path / 'cuts').iterdir()]
  return sorted(name for name in found if name != 'job')


@pytest.mark.parametrize(
  ('before', 'after'),
  [
    pytest.param(None, None, marks=pytest.mark.exhaustive),
    (partitioners.FixedShards(2), None),
    (None, partitioners.FixedShards(3)),
    pytest.param(
      *(partitioners.FixedShards(2), partitioners.FixedShards(3)),
      marks=pytest.mark.exhaustive,
    ),
  ],
)
def test_variables_begin_with_a_cut_however_they_are_cut_up(
  make, before, after
):
  strategy = make(before)
  kept = variables(strategy, scale=5)
  cut(strategy)
  del kept
  assert_same(variables(make(after)), scale=5)


def _background():
  return {t for t in threading.enumerate() if t.name in _BACKGROUND}


def test_who_connects_anew_leaves_nothing_of_before_going_on(
  make, tfps_cluster, tmp_path
):
  left_open = make(every_secs=0.02, replicas=1, replicate_every_secs=0.02)
  kept = [*variables(left_open), tfps.Coordinator(left_open)]
  waiting.until(lambda: len(folders(tmp_path)) > 0)
  before = _background()
  assert {thread.name for thread in before} == _BACKGROUND
  tfps.ParameterServerStrategy(tfps_cluster.cluster)
  assert not before & _background()
  del kept, left_open


@pytest.mark.parametrize('written_by', ['chief', 'ps'])
def test_only_their_owner_reads_cuts(make, tmp_path, written_by):
  before = os.umask(0)
  try:
    strategy = make(partitioners.FixedShards(2), written_by=written_by)
    kept = variables(strategy)
    cut(strategy)
  finally:
    os.umask(before)
  del kept
  found = [tmp_path / 'cuts', *(tmp_path / 'cuts').rglob('*')]
  files = [path for path in found if path.is_file()]
  assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
  assert {path.name for path in files} >= {'job', 'contents.json'}
  assert sum(path.name.startswith('values.data') for path in files) == 2
  modes = {stat.S_IMODE(p.stat().st_mode) for p in found if p.is_dir()}
  assert modes == {0o700}


def test_one_machine_reads_a_cut_by_itself(make):
  strategy = make(partitioners.FixedShards(2))
  kept = variables(strategy)
  reader = tf.train.load_checkpoint(os.fspath(cut(strategy) / 'values'))
  np.testing.assert_array_equal(reader.get_tensor('table'), TABLE)
  assert reader.get_tensor('count') == 3
  assert reader.get_tensor('count#1') == 1.5
  del kept


def test_a_variable_that_no_cut_has_keeps_its_value(make):
  first = make()
  with first.scope():
    kept = tf.Variable(1.0, name='old')
  cut(first)
  second = make()
  with second.scope():
    old, new = tf.Variable(7.0, name='old'), tf.Variable(8.0, name='new')
  assert (old.numpy(), new.numpy()) == (1.0, 8.0)
  del kept


def test_what_is_not_on_a_ps_is_left_alone(make):
  strategy = make()
  with strategy.scope():
    kept = tf.Variable(1.0)
  with tf.device('/job:chief/task:0'):
    local = tf.Variable(2.0)
  noted = [e.variable for e in strategy.guard.snapshotter.inventory.entries()]
  assert any(variable is kept for variable in noted)
  assert not any(variable is local for variable in noted)


def test_nothing_new_is_not_written_again(make, tmp_path):
  strategy = make()
  kept = variables(strategy)
  cut(strategy)
  cut(strategy)
  assert folders(tmp_path) == ['snapshot-000001']
  del kept


def test_old_cuts_go_once_there_are_newer_ones(make, tmp_path):
  strategy = make(max_to_keep=2)
  kept = []
  for i in range(4):
    with strategy.scope():
      kept.append(tf.Variable(float(i)))
    cut(strategy)
  assert folders(tmp_path) == ['snapshot-000003', 'snapshot-000004']


def truncate(path):
  data = max(path.glob('values.data*'))
  data.write_bytes(data.read_bytes()[:-3])


def flip(path):
  data = max(path.glob('values.data*'))
  content = bytearray(data.read_bytes())
  content[len(content) // 2] ^= 0xFF
  data.write_bytes(content)


def lose_index(path):
  (path / 'values.index').unlink()


def lose_contents(path):
  (path / 'contents.json').unlink()


def garble_contents(path):
  (path / 'contents.json').write_text('{"table": 7')


def empty(path):
  shutil.rmtree(path)
  path.mkdir()


DAMAGES = [truncate, flip, lose_index, lose_contents, garble_contents, empty]


def some(damages, default):
  """All of them, of which those that are not named run with --exhaustive."""
  exhaustive = [pytest.mark.exhaustive]
  return [
    pytest.param(damage, marks=[] if damage in default else exhaustive)
    for damage in damages
  ]


def make_two_cuts(strategy):
  kept = variables(strategy, scale=2)
  first = cut(strategy)
  with strategy.scope():
    kept.append(tf.Variable(9.0, name='later'))
  return first, cut(strategy)


@pytest.mark.parametrize('damage', some(DAMAGES, [truncate, lose_index]))
def test_a_damaged_cut_is_passed_over_for_the_one_before(make, caplog, damage):
  _, latest = make_two_cuts(make())
  damage(latest)
  strategy = make()
  assert 'snapshot-000002 is damaged' in caplog.text
  assert_same(variables(strategy), scale=2)


@pytest.mark.parametrize('damage', some(DAMAGES, [flip, lose_contents]))
def test_if_all_cuts_are_damaged_nothing_begins_afresh(make, damage):
  for path in make_two_cuts(make()):
    damage(path)
  with pytest.raises(
    errors.CheckpointError,
    match='none of snapshot-000001, snapshot-000002 can be read',
  ):
    make()


@pytest.mark.quick
@pytest.mark.parametrize('number', [None, 1, 3, '2'])
def test_another_format_is_refused_though_an_earlier_snapshot_is_sound(
  make, number
):
  _, latest = make_two_cuts(make())
  path = latest / 'contents.json'
  found = json.loads(path.read_text())
  if number is None:  # as before there were numbers
    path.write_text(json.dumps(found['variables']))
  else:
    path.write_text(json.dumps({**found, 'format': number}))
  says = 'no format number' if number is None else f'format {number!r}'
  with pytest.raises(
    errors.CheckpointError, match=f'{path} has {says}, .* reads format 2'
  ):
    make()


def gone(path):
  shutil.rmtree(path)


def make_two_cuts_of_the_same(strategy):
  kept = variables(strategy, scale=2)
  first = cut(strategy)
  with (
    strategy.guard.snapshotter.gate
  ):  # as an execution that changes something
    kept[1].assign(7)
  return kept, first, cut(strategy)


def put_back(strategy):
  snapshotter = strategy.guard.snapshotter
  return snapshotter.restore({0}, strategy.guard.copies.replicas)


@pytest.mark.parametrize(
  'damage', some([truncate, flip, lose_index, empty, gone], [flip, gone])
)
def test_a_cut_that_is_damaged_when_it_is_needed_is_passed_over(
  make, tmp_path, damage
):
  strategy = make()
  kept, first, latest = make_two_cuts_of_the_same(strategy)
  damage(latest)
  assert 0 <= put_back(strategy) < 60
  assert_same(kept, scale=2)
  assert strategy.guard.snapshotter.latest.path == first
  shutil.rmtree(latest, ignore_errors=True)
  assert cut(strategy).name == 'snapshot-000002'  # a sound one is due


@pytest.mark.parametrize('damage', [truncate, gone])
def test_cuts_that_are_damaged_when_they_are_needed_are_an_error(make, damage):
  strategy = make()
  kept, *paths = make_two_cuts_of_the_same(strategy)
  for path in paths:
    damage(path)
  with pytest.raises(
    errors.CheckpointError, match=r'can be read|no snapshot of all'
  ):
    put_back(strategy)
  del kept


def test_what_a_chief_that_was_killed_was_writing_goes(make, tmp_path):
  strategy = make()
  kept = variables(strategy)
  draft = cut(strategy).rename(tmp_path / 'cuts' / 'draft-1')
  make()
  assert not draft.exists()
  del kept


@pytest.mark.skipif(bool(disks.problem()), reason=disks.problem())
@pytest.mark.parametrize('num_pages', some(range(4), [0, 2]))
def test_what_there_is_no_room_for_leaves_nothing(make, num_pages):
  """Its values have some pages, its index and its contents one each."""
  with testing.small_disk(2**20) as disk:
    strategy = make(directory=disk / 'cuts')
    kept, *paths = make_two_cuts_of_the_same(strategy)
    with strategy.guard.snapshotter.gate:
      kept[1].assign(8)
    page = os.sysconf('SC_PAGE_SIZE')
    num_values = max(paths[1].glob('values.data*')).stat().st_size // page
    free = shutil.disk_usage(disk).free - (num_values + num_pages) * page
    ballast = disk / 'ballast'
    ballast.write_bytes(bytes(free))
    with pytest.raises(
      errors.CheckpointError,
      match=rf'draft-\S+ could not.*No space left.*The latest is {paths[1]}',
    ):
      cut(strategy)
    assert sorted((disk / 'cuts').iterdir()) == [disk / 'cuts' / 'job', *paths]
    ballast.unlink()
    assert cut(strategy).name == 'snapshot-000003'


def test_a_cut_of_another_program_is_refused(make):
  first = make()
  with first.scope():
    kept = tf.Variable(tf.zeros([3]), name='w')
  cut(first)
  second = make()
  with (
    second.scope(),
    pytest.raises(
      errors.CheckpointError,
      match=r'w is float32 \[3\].*makes it float32 \[4\]',
    ),
  ):
    tf.Variable(tf.zeros([4]), name='w')
  del kept


def test_strings_in_shards_are_refused(make):
  scope = make(partitioners.FixedShards(2)).scope()
  refused = pytest.raises(ValueError, match='words holds strings in 2 shards')
  with scope, refused:
    tf.Variable(['a', 'b', 'c'], name='words')


def test_a_directory_that_cannot_be_written_is_an_error(make, tmp_path):
  (tmp_path / 'file').write_text('')
  with pytest.raises(errors.CheckpointError, match=r'file/cuts.*cannot be'):
    make(directory=tmp_path / 'file' / 'cuts')


def test_a_cut_that_fails_leaves_the_one_before(make, tmp_path):
  strategy = make()
  kept = variables(strategy)
  first = cut(strategy)
  with strategy.scope():
    kept.append(tf.Variable(1.0))
  moved = tmp_path / 'moved'
  (tmp_path / 'cuts').rename(moved)
  with pytest.raises(errors.CheckpointError, match='The latest is'):
    strategy.guard.snapshotter.save()
  moved.rename(tmp_path / 'cuts')
  assert strategy.guard.snapshotter.latest.path == first
  assert cut(strategy).name == 'snapshot-000002'
