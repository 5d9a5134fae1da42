"""Tasks as processes of this machine."""

import contextlib

from tests.launch import engine as engine_lib


class Local(engine_lib.Engine):
  """`tfps launch`."""

  name = 'local'

  def missing(self):
    return ''

  @contextlib.contextmanager
  def up(self, folder):
    yield

  def start(
    self,
    folder,
    words,
    *,
    num_workers=2,
    num_ps=2,
    max_restarts=0,
    options=(),
    env=None,
  ):
    logs = folder / 'logs'
    command = engine_lib.launch_command(
      words,
      num_workers=num_workers,
      num_ps=num_ps,
      max_restarts=max_restarts,
      options=[f'--log_dir={logs}', *options],
    )
    return engine_lib.Launched(command, folder, logs, env)

  def mistakes(self):
    return [
      engine_lib.Mistake(
        'too few GPUs',
        r'CUDA_VISIBLE_DEVICES=0 names 1 GPUs, and workers up to worker:1',
        words=['--gpus_per_worker=1'],
        env={'CUDA_VISIBLE_DEVICES': '0'},
      )
    ]
