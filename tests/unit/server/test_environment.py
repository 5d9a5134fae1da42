"""What connections are told, unless the user has said otherwise."""

import os
import re

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
