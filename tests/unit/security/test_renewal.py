"""Credentials that have changed reach all proxies of a task."""

import shutil

import pytest

from tests.support import enclosures
import tfps
from tfps.security import renewal


class _Proxy:
  """A proxy that refuses credentials some times, and keeps what it has."""

  def __init__(self, refusals=0):
    self.refusals = refusals
    self.given = []

  def renew(self, security):
    if self.refusals:
      self.refusals -= 1
      raise OSError('it does not answer')
    self.given.append(security.pem())


@pytest.fixture
def folder(tmp_path):
  return enclosures.make(tmp_path / 'certs')


@pytest.fixture
def credentials(folder):
  security = tfps.Security(
    folder / 'ca.pem', folder / 'ps-0.pem', folder / 'ps-0.key'
  )
  return renewal.Renewal(security, enclosures.PS)


def test_files_that_are_as_before_are_not_given(credentials):
  proxy = _Proxy()
  credentials.renew([proxy])
  assert proxy.given == []


def test_what_a_proxy_did_not_take_is_given_to_all_again(
  folder, credentials, capsys
):
  proxies = [_Proxy(), _Proxy(refusals=1)]
  enclosures.make(folder)
  credentials.renew(proxies)
  assert [len(proxy.given) for proxy in proxies] == [1, 0]
  assert 'not renewed everywhere: it does not answer' in capsys.readouterr().err
  for _ in range(2):
    credentials.renew(proxies)
  assert [len(proxy.given) for proxy in proxies] == [2, 1]
  assert proxies[0].given[-1] == proxies[1].given[-1]
  assert 'ps-0.pem is renewed' in capsys.readouterr().err


def test_what_does_not_fit_is_given_to_none_and_said_once(
  folder, credentials, capsys
):
  proxy = _Proxy()
  shutil.copy(folder / 'worker-0.key', folder / 'ps-0.key')
  for _ in range(2):
    credentials.renew([proxy])
  assert proxy.given == []
  assert capsys.readouterr().err.count('are not used') == 1


def test_refused_files_are_taken_once_their_key_is_private(folder, credentials):
  proxy = _Proxy()
  enclosures.make(folder)
  key = folder / 'ps-0.key'
  key.chmod(0o644)
  credentials.renew([proxy])
  assert proxy.given == []
  key.chmod(0o600)
  for _ in range(2):
    credentials.renew([proxy])
  assert len(proxy.given) == 1


def test_what_is_refused_is_looked_at_again_and_each_reason_said_once(
  folder, credentials, capsys, monkeypatch
):
  late, lost = ValueError('not valid yet.'), OSError('not there.')
  reasons = [late, late, lost, lost, late]

  def check(security, task):
    if reasons:
      raise reasons.pop(0)

  monkeypatch.setattr(tfps.Security, 'check', check)
  proxy = _Proxy()
  enclosures.make(folder)
  for _ in range(7):
    credentials.renew([proxy])
  assert len(proxy.given) == 1
  said = [
    line.split(': ', 2)[-1] for line in capsys.readouterr().err.splitlines()
  ]
  assert [s.split('. ')[0] for s in said[:-1]] == [
    'not valid yet',
    'not there',
    'not valid yet',
  ]
  assert said[-1].endswith('is renewed.')


def test_a_proxy_that_takes_nothing_is_said_once(folder, credentials, capsys):
  enclosures.make(folder)
  proxy = _Proxy(refusals=3)
  for _ in range(4):
    credentials.renew([proxy])
  assert len(proxy.given) == 1
  assert capsys.readouterr().err.count('not renewed everywhere') == 1
