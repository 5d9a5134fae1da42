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

  def run(self, folder, request):
    logs = folder / 'logs'
    command = request.command(f'--log_dir={logs}')
    return engine_lib.Launched(command, folder, logs, request.env)

  def mistakes(self):
    return [
      engine_lib.Mistake(
        'too few GPUs',
        r'CUDA_VISIBLE_DEVICES=0 names 1 GPUs, and workers up to worker:1',
        words=['--gpus_per_worker=1'],
        env={'CUDA_VISIBLE_DEVICES': '0'},
      )
    ]
