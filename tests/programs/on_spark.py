"""A driver of Spark in local-cluster mode: two executors of three cores.

`on_spark.py program JOB WORDS...` runs a program, with the settings of JOB, a
mapping in JSON; `on_spark.py DEED FOLDER` runs functions.
"""

import json
import os
import pathlib
import sys
import threading
import time

import pyspark
from pyspark.sql import SparkSession

from tfps import errors
import tfps.launch.spark

_CORES = 3


def _session(*, num_executors: int = 2) -> SparkSession:
  session = (
    SparkSession.builder.master(f'local-cluster[{num_executors},{_CORES},1024]')
    .config('spark.ui.enabled', 'false')
    .config('spark.ui.showConsoleProgress', 'false')
    .config('spark.executor.memory', '512m')
    .getOrCreate()
  )
  session.sparkContext.setLogLevel('ERROR')
  return session


def _home(folder: pathlib.Path) -> None:
  """Makes a home of Spark whose folder with the executors' files is ours."""
  home = folder / 'spark'
  home.mkdir(exist_ok=True)
  for path in pathlib.Path(pyspark.__file__).parent.iterdir():
    if path.name != 'work' and not (home / path.name).exists():
      (home / path.name).symlink_to(path)
  os.environ['SPARK_HOME'] = str(home)


def _task() -> str:
  task = json.loads(os.environ['TF_CONFIG'])['task']
  return f'{task["type"]}:{task["index"]}'


class _Found:
  """What a task has found; its class is the script's own."""

  def __init__(self, **facts: object) -> None:
    self.facts = facts


def program(job: str, *words: str) -> None:
  try:
    tfps.launch.spark.run(_session(), *words, **json.loads(job))
  except errors.TaskFailedError as error:
    print(error, flush=True)
    sys.exit(error.status)


def result(folder: str) -> None:
  def function(number: int) -> _Found:
    jobs = json.loads(os.environ['TF_CONFIG'])['cluster']
    return _Found(
      task=_task(),
      jobs={j: len(jobs[j]) for j in jobs},
      mark=os.environ['A'],
      number=number,
    )

  found = tfps.launch.spark.run(
    _session(), function, 7, num_workers=2, num_ps=2, env={'A': 'b'}
  )
  print('RESULT', json.dumps(found.facts))


def raises(folder: str) -> None:
  def function() -> None:
    print('TASK', _task(), 'pid', os.getpid(), flush=True)
    if _task() == 'worker:1':
      raise KeyError('no such flight')
    time.sleep(600)

  try:
    tfps.launch.spark.run(
      _session(), function, num_workers=2, log_dir=f'{folder}/logs'
    )
  except errors.TaskFailedError as error:
    print('ERROR', error.task, error.status, error)


def busy(folder: str) -> None:
  """Another job of the application has all slots but one."""
  session = _session()
  others = session.sparkContext.parallelize(range(5), 5)
  thread = threading.Thread(
    target=lambda: others.foreach(lambda _: time.sleep(600)), daemon=True
  )
  thread.start()
  tracker = session.sparkContext.statusTracker()
  while not tracker.getActiveStageIds():
    time.sleep(0.1)
  time.sleep(2.0)
  try:
    tfps.launch.spark.run(session, print, timeout_secs=5)
  except errors.DeadlineError as error:
    print('ERROR', error, flush=True)


def rows(folder: str) -> None:
  """Each row of a DataFrame is seen once in each of two epochs."""
  session = _session()
  data = [(i, i * 0.5, f'f{i}', [i] * (1 + i % 3)) for i in range(1000)]
  frame = session.createDataFrame(data, ['id', 'half', 'name', 'list'])
  written = tfps.launch.spark.write(frame, f'{folder}/rows', num_files=6)
  again = tfps.launch.spark.write(frame, f'{folder}/rows', num_files=2)
  print('SAME', written == again, len(written.files), written.num_rows)
  seen = tfps.launch.spark.run(session, _train, written, num_workers=2)
  print('SEEN', json.dumps(seen))


def _train(found: tfps.launch.spark.Rows) -> dict[str, object] | None:
  import tensorflow as tf

  import tfps

  cluster = tfps.resolve_cluster()
  if cluster.task.job in ('ps', 'worker'):
    tfps.serve(cluster)
    return None
  strategy = tfps.ParameterServerStrategy(cluster)
  with strategy.scope():
    times = tf.Variable(tf.zeros([1000], tf.int64), trainable=False)
    halves = tf.Variable(tf.zeros([]), trainable=False)
    letters = tf.Variable(tf.zeros([], tf.int64), trainable=False)
    queue = tfps.input.SplitQueue(found.splits(), epochs=2)

  def step(batch: dict[str, tf.Tensor]) -> None:
    ids = batch['id']
    once = tf.math.bincount(tf.cast(ids, tf.int32), minlength=1000)
    times.assign_add(tf.cast(once, tf.int64))
    halves.assign_add(tf.reduce_sum(batch['half']))
    lengths = tf.strings.length(batch['name'])
    sums = tf.reduce_sum(batch['list'], axis=1)
    counts = batch['list'].row_lengths()
    right = tf.reduce_all(sums == ids * counts)
    tf.debugging.Assert(right, [sums, ids])
    letters.assign_add(tf.cast(tf.reduce_sum(lengths), tf.int64))

  with tfps.Coordinator(strategy) as coordinator:
    coordinator.train(
      step,
      lambda context: queue.dataset(context).batch(50).map(found.parse),
      steps_per_execution=1,
    )
  values = times.numpy()
  return {
    'least': int(values.min()),
    'most': int(values.max()),
    'halves': float(halves.numpy()),
    'letters': int(letters.numpy()),
  }


def bad_rows(folder: str) -> None:
  session = _session()
  for number, (data, names) in enumerate(
    [
      ([(1, {'a': 1})], ['id', 'mapping']),
      ([(1, 'a'), (2, None)], ['id', 'name']),
    ]
  ):
    frame = session.createDataFrame(data, names)
    try:
      tfps.launch.spark.write(frame, f'{folder}/{number}')
    except Exception as error:  # of Spark, around that of an executor
      print('ERROR', error, flush=True)


if __name__ == '__main__':
  _home(pathlib.Path.cwd())
  try:
    globals()[sys.argv[1]](*sys.argv[2:])
  finally:
    if session := SparkSession.getActiveSession():
      session.stop()
