"""Tasks in the executors of a real Spark cluster on this machine."""

import contextlib
import importlib.util
import json
import pathlib
import shutil
import sys

from tests.launch import engine as engine_lib

DRIVER = pathlib.Path(__file__).parents[2] / 'programs' / 'on_spark.py'


class Spark(engine_lib.Engine):
  """`tfps.launch.spark.run` with two executors of three cores."""

  name = 'spark'

  def missing(self):
    if importlib.util.find_spec('pyspark') is None:
      return "no pyspark: pip install 'tfps[spark]'"
    return (
      '' if shutil.which('java') else 'no java: apt-get install default-jre'
    )

  @contextlib.contextmanager
  def up(self, folder):
    yield  # A driver brings up its own executors.

  def run(self, folder, request):
    logs = folder / 'logs'
    job = {
      'num_workers': request.num_workers,
      'num_ps': request.num_ps,
      'max_restarts': request.max_restarts,
      'log_dir': str(logs),
      'env': dict(request.env),
      'timeout_secs': 60.0,
      **dict(map(json.loads, request.options)),
    }
    command = [sys.executable, DRIVER, 'program', json.dumps(job)]
    command += [request.program, *request.words]
    return engine_lib.Launched([*map(str, command)], folder, logs, request.env)

  def secured_by(self, certificates):
    return [json.dumps(['secure_directory', str(certificates)])]

  def mistakes(self):
    return [
      engine_lib.Mistake(
        'too few slots',
        r'7 tasks of a barrier stage need 7 slots at once, and Spark has 6 on '
        r'2 executors after 5 seconds',
        words=['["timeout_secs", 5.0]'],
        sizes={'num_ps': 4},
      ),
    ]
