"""Pods of Kubernetes, for which this suite would need a cluster."""

import contextlib

from tests.launch import engine as engine_lib


class Kubernetes(engine_lib.Engine):
  """`tfps launch --engine=kubernetes`."""

  name = 'kubernetes'

  def missing(self):
    return (
      'no API server: no package registry has one. Instead, manifests are '
      'held against the published schemas, and '
      '[their pods](../tests/process/launch/test_pods.py) run on hosts of '
      'their own'
    )

  @contextlib.contextmanager
  def up(self, folder):
    raise NotImplementedError(self.missing())

  def start(self, folder, words, **options):
    raise NotImplementedError(self.missing())
