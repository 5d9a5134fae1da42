"""Pods of Kubernetes, for which this suite would need a cluster."""

import contextlib

from tests.launch import engine as engine_lib


class Kubernetes(engine_lib.Engine):
  """`tfps launch --engine=kubernetes`."""

  name = 'kubernetes'

  def missing(self):
    return 'not run: [no cluster](#kubernetes)'

  @contextlib.contextmanager
  def up(self, folder):
    raise NotImplementedError(self.missing())

  def run(self, folder, request):
    raise NotImplementedError(self.missing())
