import importlib.util
import types

import pytest

from tfps.cluster import spec as spec_lib
from tfps.launch import ends as ends_lib
from tfps.launch import job as job_lib
from tfps.launch import spark
from tfps.launch import spark_rows
from tfps.launch import spark_task
from tfps.launch import task_process

_JOB = job_lib.Job(('train.py',), num_workers=2, num_evaluators=1)
_CHIEF, _PS, _WORKER, _OTHER, _EVALUATOR = _JOB.tasks()
_ENDS = ends_lib.Ends.of(_JOB, evaluator_secs=60)
_ADDRESSES = {
  _CHIEF: 'h0:1',
  _PS: 'h1:1',
  _WORKER: 'h0:2',
  _OTHER: 'h0:3',
  _EVALUATOR: 'h1:2',
}


@pytest.mark.parametrize(
  ('left', 'secs'),
  [
    pytest.param([_CHIEF, _PS], None, id='the chief'),
    pytest.param([_PS, _OTHER], None, id='a worker'),
    pytest.param([_PS], 10, id='a ps'),
    pytest.param([_PS, _EVALUATOR], 60, id='an evaluator'),
    pytest.param([], 10, id='none'),
  ],
)
def test_tasks_have_time_to_end_once_none_trains(left, secs):
  assert _ENDS.secs_left(left) == secs


class _Stopped:
  """A program that has been told to stop, or has not."""

  is_stopped = False

  def stop(self):
    self.is_stopped = True


@pytest.mark.parametrize(
  ('task', 'secs_by_done', 'stopped'),
  [
    pytest.param(_PS, {3: 60, 4: -1}, True, id='the evaluator ended'),
    pytest.param(_PS, {3: 60}, False, id='the evaluator may run'),
    pytest.param(_EVALUATOR, {3: 60, 4: 60}, False, id='a ps ended'),
    pytest.param(_EVALUATOR, {3: -1, 4: 60}, True, id='the first is over'),
  ],
)
def test_the_earliest_deadline_holds(task, secs_by_done, stopped):
  """Each round, so many others are done, and what is left has its time."""
  process = _Stopped()
  others = [_CHIEF, _WORKER, _OTHER, *({_PS, _EVALUATOR} - {task})]
  given = iter(secs_by_done.values())
  ends = types.SimpleNamespace(secs_left=lambda left: next(given))
  rounds = spark_task._Rounds(None, _JOB, task, ends, process)
  for num_done in secs_by_done:
    said = dict.fromkeys(_JOB.tasks())
    rounds._heed(said | dict.fromkeys(others[:num_done], 0))
  assert process.is_stopped == stopped


def test_worker_0_is_the_chief_where_there_is_none():
  job = job_lib.Job(('train.py',), num_chiefs=0)
  ends = ends_lib.Ends.of(job, evaluator_secs=60, servers=('ps', 'worker'))
  assert ends.chief == spec_lib.Task('worker', 0)
  assert ends.secs_left([ends.chief]) is None


def test_the_cluster_has_the_addresses_but_an_evaluators():
  assert job_lib.cluster(_ADDRESSES, 'Spark') == spec_lib.Cluster(
    {'chief': ['h0:1'], 'ps': ['h1:1'], 'worker': ['h0:2', 'h0:3']}
  )


@pytest.mark.parametrize(
  ('task', 'assigned', 'visible'),
  [
    pytest.param(_OTHER, ['4', '7'], '4', id='those that Spark assigns'),
    pytest.param(_OTHER, None, '1', id='those behind an earlier worker'),
    pytest.param(_PS, ['4'], '-1', id='none for a ps'),
  ],
)
def test_a_worker_sees_its_gpus(monkeypatch, task, assigned, visible):
  monkeypatch.delenv('CUDA_VISIBLE_DEVICES', raising=False)
  job = job_lib.Job(('train.py',), num_workers=2, gpus_per_worker=1)
  env = spark_task.visible_gpus(job, task, _ADDRESSES, assigned)
  assert env == {'CUDA_VISIBLE_DEVICES': visible}


def test_the_failure_is_that_of_the_task_that_was_not_stopped():
  ends = [
    spark_task.End(_CHIEF, task_process.Outcome(143), was_stopped=True),
    spark_task.End(_EVALUATOR, task_process.Outcome(1), was_stopped=False),
    spark_task.End(_OTHER, task_process.Outcome(7, 'why\n'), was_stopped=False),
  ]
  with pytest.raises(
    Exception, match=r'worker:1 failed with status 7'
  ) as found:
    spark._result(ends, _CHIEF)
  assert (found.value.task, found.value.status) == ('worker:1', 7)


def test_an_evaluators_failure_counts_in_the_end():
  ends = [
    spark_task.End(_CHIEF, task_process.Outcome(0), was_stopped=False),
    spark_task.End(_EVALUATOR, task_process.Outcome(3), was_stopped=False),
  ]
  with pytest.raises(Exception, match=r'evaluator:0 failed with status 3'):
    spark._result(ends, _CHIEF)


def test_the_result_is_the_chiefs():
  ends = [
    spark_task.End(_PS, task_process.Outcome(143), was_stopped=True),
    spark_task.End(
      _CHIEF, task_process.Outcome(0, result=b'x'), was_stopped=False
    ),
  ]
  assert spark._result(ends, _CHIEF) == b'x'


@pytest.mark.parametrize(
  ('words', 'options', 'complaint'),
  [
    ((7,), {}, '7 is neither a function nor a word of a program'),
    (('train.py', 7), {}, '7 is neither a function nor a word'),
    (('',), {}, "'' is neither a function"),
    (('train.py',), {'num_workers': 0}, 'num_workers is 0, not 1, 2'),
  ],
)
def test_wrong_arguments_are_named(words, options, complaint):
  with pytest.raises(ValueError, match=complaint):
    spark.run(None, *words, **options)


@pytest.mark.skipif(
  importlib.util.find_spec('pyspark') is not None, reason='pyspark is there'
)
def test_without_pyspark_the_extra_is_named():
  with pytest.raises(ImportError, match=r"pip install 'tfps\[spark\]'"):
    spark.run(None, 'train.py')


@pytest.mark.skipif(
  importlib.util.find_spec('pyspark') is None, reason='no pyspark'
)
def test_what_is_no_session_is_named():
  with pytest.raises(ValueError, match=r'spark=None is no SparkSession'):
    spark.run(None, 'train.py')


class _Schema:
  """Types of Spark by column: those that tell vectors from others."""

  def __getitem__(self, name):
    kind = {'v': 'VectorUDT'}.get(name, 'AnyType')
    return types.SimpleNamespace(dataType=type(kind, (), {})())


def _columns(**dtypes):
  return spark_rows._columns(dtypes.items(), _Schema())


def test_columns_have_types():
  assert _columns(i='bigint', a='array<string>', v='struct<...>') == (
    spark_rows.Column('i', 'bigint'),
    spark_rows.Column('a', 'string', (0, 0)),
    spark_rows.Column('v', 'vector', (0, 0)),
  )


@pytest.mark.parametrize(
  'wrong', ['decimal(10,0)', 'timestamp', 'map<string,int>', 'array<date>']
)
def test_a_column_of_another_type_is_named(wrong):
  with pytest.raises(ValueError, match="The column 'x' has the type "):
    _columns(i='int', x=wrong)


def _write(folder, columns, *parts):
  written = [
    part
    for i, rows in enumerate(parts)
    for part in spark_rows._write_part(str(folder), columns, i, iter(rows))
  ]
  rows = spark_rows.Rows(
    str(folder),
    {part.name: part.num_rows for part in written},
    spark_rows._merged(written),
  )
  spark_rows._write_list(rows)
  return spark_rows.read(folder)


def test_rows_are_read_as_they_were_written(tmp_path):
  import tensorflow as tf

  columns = _columns(
    i='bigint',
    b='boolean',
    d='double',
    s='string',
    y='binary',
    a='array<int>',
    r='array<float>',
  )
  rows = _write(
    tmp_path,
    columns,
    [(1, True, 0.5, 'é', bytearray(b'\xff'), [1, 2], [])],
    [],
    [(2**40, False, 1.5, '', b'', [3, 4], [0.5, 1.5])],
  )
  assert rows.num_rows == len(rows.splits()) == 2
  records = tf.data.TFRecordDataset(rows.splits().paths)
  (batch,) = records.batch(2).map(rows.parse)
  assert batch['i'].numpy().tolist() == [1, 2**40]
  assert batch['b'].numpy().tolist() == [True, False]
  assert batch['d'].numpy().tolist() == [0.5, 1.5]
  assert batch['s'].numpy().tolist() == ['é'.encode(), b'']
  assert batch['y'].numpy().tolist() == [b'\xff', b'']
  assert batch['a'].numpy().tolist() == [[1, 2], [3, 4]]
  assert batch['a'].dtype == tf.int32
  assert batch['r'].to_list() == [[], [0.5, 1.5]]
  (one, _) = records.map(rows.parse)
  assert one['a'].numpy().tolist() == [1, 2]


class _Frame:
  """A DataFrame in name only, whose partitions are written here."""

  dtypes = (('x', 'int'),)
  schema = _Schema()

  def __init__(self, *parts):
    self.rdd = self
    self._parts = parts

  def select(self, *names):
    return self

  def mapPartitionsWithIndex(self, function):  # noqa: N802
    return _Frame(*(function(i, iter(p)) for i, p in enumerate(self._parts)))

  def collect(self):
    return [each for part in self._parts for each in part]


def test_only_parts_of_an_attempt_that_failed_are_removed(tmp_path):
  kept = {'day1.tfrecord', 'part-00000.tfrecord', 'part-r-00000-x.tfrecord'}
  for name in (*kept, 'part-00000-0123abcd.tfrecord'):
    (tmp_path / name).touch()
  rows = spark_rows.write(_Frame([(1,), (2,)], [(3,)]), tmp_path)
  assert rows.num_rows == 3
  names = {path.name for path in tmp_path.iterdir()}
  assert names == {*kept, *rows.files, 'rows.json'}


@pytest.mark.parametrize(
  ('dtype', 'value'),
  [('int', None), ('array<int>', None), ('array<int>', [None])],
)
def test_a_null_is_named(tmp_path, dtype, value):
  with pytest.raises(ValueError, match="The column 'x' has a null"):
    _write(tmp_path, _columns(x=dtype), [(value,)])


def test_rows_that_were_not_written_to_the_end_are_none(tmp_path):
  with pytest.raises(ValueError, match=r'has no rows\.json'):
    spark_rows.read(tmp_path)


def test_rows_with_other_columns_are_not_taken(tmp_path):
  rows = _write(tmp_path, _columns(x='int'), [(1,)])
  assert spark_rows._same(rows, _columns(x='int')) is rows
  with pytest.raises(ValueError, match=r"\('x', 'int'\).* has .*'bigint'"):
    spark_rows._same(rows, _columns(x='bigint'))
