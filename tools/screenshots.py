"""Makes the pictures of docs/monitoring.md, of a job of this machine.

  python -m tools.screenshots

It trains a model on 3 workers and 2 ps, kills a worker and a ps, which are
started again, and meanwhile takes pictures of a trace, of the web page, in
Chromium (`tools/install_engines.sh page`), and of `tfps top`. It takes 2
minutes.
"""

import contextlib
import io
import json
import os
import pathlib
import sys
import tempfile
import time
import urllib.request

import keras
import portpicker
import tensorflow as tf

from tests.support import browser as browser_lib
from tests.support import waiting
import tfps
from tfps import testing
from tfps._utils import threads
from tfps.monitor import dashboard
from tfps.server import job_table
from tfps.server import observation
from tfps.server import top_command
from tfps.server import trace_command
from tools import trace_picture

_DOCS = pathlib.Path(__file__).parents[1] / 'docs'
_CHIEF = tfps.Task('chief', 0)
_KEYS = 5_000
_STEPS = 1_000_000  # more than there is time for
_BATCH = 512
_SECS = 25.0  # of training before, between and after the losses


class _OverError(Exception):
  """Ends training."""


def main() -> int:
  """Makes the pictures; returns 0, or 1 if there is no browser."""
  if browser_lib.find() is None:
    print(browser_lib.MISSING, file=sys.stderr)
    return 1
  port = portpicker.pick_unused_port()
  os.environ[dashboard.VARIABLE] = str(port)
  with (
    tempfile.TemporaryDirectory() as folder,
    testing.ProcessCluster(num_workers=3, num_ps=2) as cluster,
  ):
    strategy = tfps.ParameterServerStrategy(
      cluster.cluster,
      tfps.partitioners.FixedShards(2),
      wire=tfps.Wire(push=tfps.codecs.Int8()),
      recovery=tfps.Recovery(folder, every_secs=5),
    )
    with tfps.Coordinator(strategy) as coordinator:
      watching = threads.begin(
        'watch', lambda: _watch(cluster, port, pathlib.Path(folder))
      )
      _train(coordinator, strategy, watching.done)
      watching.result()
  return 0


def _train(coordinator, strategy, is_over) -> None:
  """Trains until it is over."""
  with strategy.scope():
    table = keras.layers.Embedding(_KEYS, 16, name='table')
    tower = keras.Sequential(
      [
        keras.layers.Flatten(),
        keras.layers.Dense(256, activation='relu', name='hidden'),
        keras.layers.Dense(1, name='logits'),
      ],
      name='tower',
    )
    table.build([None, 8])
    tower.build([None, 8, 16])
    variables = [*table.trainable_variables, *tower.trainable_variables]
    optimizer = keras.optimizers.Adagrad(0.05)
    optimizer.build(variables)
  loss_of = keras.losses.BinaryCrossentropy(from_logits=True)

  def step(batch):
    keys, labels = batch
    with tf.GradientTape() as tape:
      loss = loss_of(labels, tower(table(keys)))
    optimizer.apply(tape.gradient(loss, variables), variables)
    return {'loss': loss}

  def end(progress):
    del progress
    if is_over():
      raise _OverError

  with contextlib.suppress(_OverError):
    coordinator.train(
      step, _dataset, steps=_STEPS, steps_per_execution=10, hooks=[end]
    )


def _dataset(context):
  """Endless clicks on random keys, of which some are clicked more often."""
  del context

  def example(number):
    seed = tf.stack([number, 1])
    keys = tf.random.stateless_uniform(
      [_BATCH, 8], seed, 0, _KEYS, dtype=tf.int64
    )
    label = tf.reduce_sum(keys % 7, axis=1) > 22
    return keys, tf.cast(label, tf.float32)[:, tf.newaxis]

  return tf.data.Dataset.counter().map(example).prefetch(2)


def _watch(cluster, port: int, folder: pathlib.Path) -> None:
  url = f'http://127.0.0.1:{port}'
  with browser_lib.Browser(width=1360) as browser:
    browser.open(url)
    waiting.until(lambda: _rate(url), timeout_secs=300)
    _picture_trace(cluster.cluster, folder)
    for kind, index in (('worker', 1), ('ps', 1)):
      time.sleep(_SECS)
      cluster.kill(kind, index)
      time.sleep(3)
      cluster.restart(kind, index)
      waiting.until(
        lambda: f'back {kind}:{index}' in browser.text('#events'),  # noqa: B023
        timeout_secs=120,
      )
    time.sleep(_SECS)
    browser.take_screenshot(_DOCS / 'monitoring-page.png')
  _picture_top(cluster.cluster)


def _rate(url: str) -> bool:
  """Whether all workers have a rate."""
  with urllib.request.urlopen(f'{url}/data', timeout=30) as answer:
    tasks = json.load(answer)['tasks']
  rates = [task['steps_per_sec'] for task in tasks]
  return len([rate for rate in rates if rate]) == 3


def _picture_trace(cluster: tfps.Cluster, folder: pathlib.Path) -> None:
  path = folder / 'trace.json.gz'
  address = cluster.address(tfps.Task('ps', 0))
  options = ['--steps=60', f'--address={address}', f'--output={path}']
  if trace_command.main(options):
    raise RuntimeError('The trace could not be recorded.')
  picture = _DOCS / 'monitoring-trace.png'
  trace_picture.main([str(path), str(picture), '50'])


def _picture_top(cluster: tfps.Cluster) -> None:
  from rich import console

  known = {task: cluster.address(task) for task in cluster.tasks('ps')}

  def here():  # this process is the chief
    return {_CHIEF: observation.of_process(has_stacks=False)}

  table = job_table.JobTable(known, timeout_secs=5, here=here)
  table.read()
  time.sleep(2)
  out = console.Console(record=True, width=150, file=io.StringIO())
  out.print(top_command.render(table.read(), top_command.Shown()))
  out.save_svg(str(_DOCS / 'monitoring-top.svg'), title='tfps top')


if __name__ == '__main__':
  sys.exit(main())
