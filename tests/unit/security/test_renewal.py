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
