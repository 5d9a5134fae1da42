"""What connections are told, unless the user has said otherwise."""

import os
import re

import pytest

from tfps.server import environment


def test_a_default_is_set(monkeypatch):
  monkeypatch.delenv('TF_GRPC_DEFAULT_OPTIONS', raising=False)
  environment.set_default()
  text = os.environ['TF_GRPC_DEFAULT_OPTIONS']
  assert re.fullmatch(r'(grpc\.[\w.]+=\d+,?)+', text)
  assert 'grpc.http2.ping_timeout_ms=10000' in text


def test_what_the_user_says_stays(monkeypatch):
  monkeypatch.setenv('TF_GRPC_DEFAULT_OPTIONS', 'grpc.keepalive_time_ms=1')
  environment.set_default()
  assert os.environ['TF_GRPC_DEFAULT_OPTIONS'] == 'grpc.keepalive_time_ms=1'


@pytest.mark.parametrize('said', [None, 'false'])
def test_gpu_memory_grows_unless_the_user_says_otherwise(monkeypatch, said):
  monkeypatch.delenv('TF_FORCE_GPU_ALLOW_GROWTH', raising=False)
  if said is not None:
    monkeypatch.setenv('TF_FORCE_GPU_ALLOW_GROWTH', said)
  environment.set_default()
  assert os.environ['TF_FORCE_GPU_ALLOW_GROWTH'] == (said or 'true')
