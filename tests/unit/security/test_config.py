"""A task's credentials: where they come from, and what is wrong with them."""

import pytest

from tests.support import enclosures
import tfps
from tfps.cluster import spec as spec_lib
from tfps.security import config

_ENV = {'TFPS_CA': 'ca', 'TFPS_CERT': 'cert', 'TFPS_KEY': 'key'}


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  return enclosures.make(tmp_path_factory.mktemp('security') / 'certs')


def _security(folder, **names):
  files = {'ca': 'ca.pem', 'cert': 'ps-0.pem', 'key': 'ps-0.key', **names}
  return tfps.Security(**{n: folder / f for n, f in files.items()}, source='S')


def test_options_go_before_the_environment():
  options = {'cert': 'other', 'ca': None, 'key': None}
  found = config.Security.from_env(_ENV, options)
  assert found == tfps.Security('ca', 'other', 'key')
  assert found.source == 'TFPS_CA, --cert, TFPS_KEY'


def test_the_environment_is_that_which_is_read():
  assert config.Security.from_env(_ENV).env() == _ENV


def test_what_is_not_set_is_named():
  with pytest.raises(ValueError, match='TFPS_CA, TFPS_KEY is not set, nor --c'):
    config.Security.from_env({'TFPS_CERT': 'x'})


@pytest.mark.parametrize('task', [enclosures.PS, None])
def test_what_fits_is_taken(folder, task):
  _security(folder).check(task)


@pytest.mark.parametrize(
  ('names', 'complaint'),
  [
    ({'cert': 'no'}, r"S: cert is '.*/no', which cannot be read: No such"),
    ({'key': '../certs'}, 'key is .* cannot be read: Is a directory'),
    ({'ca': 'ps-0.key'}, r'ps-0\.key holds no certificates of CAs'),
    ({'cert': 'ca.key'}, 'no certificate and its unencrypted key'),
    ({'key': 'worker-0.key'}, 'KEY_VALUES_MISMATCH'),
    (
      {'cert': 'worker-0.pem', 'key': 'worker-0.key'},
      r"not valid for 'ps-0\.tfps'.*Make one for ps:0",
    ),
  ],
)
def test_what_does_not_fit_is_named(folder, names, complaint):
  with pytest.raises(ValueError, match=complaint):
    _security(folder, **names).check(enclosures.PS)


def test_a_certificate_of_another_ca_is_refused(folder, tmp_path):
  other = enclosures.make(tmp_path / 'other')
  mixed = tfps.Security(
    folder / 'ca.pem', other / 'ps-0.pem', other / 'ps-0.key'
  )
  with pytest.raises(ValueError, match='unable to get local issuer'):
    mixed.check(None)


def test_an_expired_certificate_is_refused(tmp_path):
  expired = enclosures.make(tmp_path / 'certs', valid_hours=-0.5)
  with pytest.raises(ValueError, match='certificate has expired'):
    _security(expired).check(enclosures.PS)


@pytest.fixture
def for_purpose(tmp_path, monkeypatch):
  """Makes certificates for one purpose, and returns their folder."""
  from cryptography import x509

  both = x509.ExtendedKeyUsage

  def make(name):
    usage = getattr(x509.oid.ExtendedKeyUsageOID, name)
    with monkeypatch.context() as patch:
      patch.setattr(x509, 'ExtendedKeyUsage', lambda usages: both([usage]))
      return enclosures.make(tmp_path / name)

  return make


@pytest.mark.parametrize(
  ('purpose', 'task'),
  [
    ('SERVER_AUTH', enclosures.PS),
    ('CLIENT_AUTH', enclosures.PS),
    ('SERVER_AUTH', None),
  ],
)
def test_a_certificate_of_another_purpose_is_refused(
  for_purpose, purpose, task
):
  with pytest.raises(ValueError, match='unsuitable certificate purpose'):
    _security(for_purpose(purpose)).check(task)


def test_what_serves_nothing_takes_a_certificate_of_a_client(for_purpose):
  _security(for_purpose('CLIENT_AUTH')).check(None)


def test_an_encrypted_key_is_refused(folder, tmp_path):
  from cryptography.hazmat.primitives import serialization as lib

  key = lib.load_pem_private_key((folder / 'ps-0.key').read_bytes(), None)
  path = tmp_path / 'encrypted.key'
  path.touch(mode=0o600)
  path.write_bytes(
    key.private_bytes(
      lib.Encoding.PEM,
      lib.PrivateFormat.PKCS8,
      lib.BestAvailableEncryption(b'secret'),
    )
  )
  with pytest.raises(ValueError, match='its unencrypted key'):
    _security(folder, key=path).check(enclosures.PS)


@pytest.mark.parametrize('mode', [0o604, 0o620, 0o666])
def test_a_key_that_others_may_use_is_refused(tmp_path, mode):
  folder = enclosures.make(tmp_path / 'certs')
  (folder / 'ps-0.key').chmod(mode)
  with pytest.raises(ValueError, match=f'mode is {mode:03o}. Run chmod 600'):
    _security(folder).check(enclosures.PS)


def test_an_index_is_part_of_the_name(folder):
  with pytest.raises(ValueError, match=r"not valid for 'ps-1\.tfps'"):
    _security(folder).check(spec_lib.Task('ps', 1))
