"""Certificates: who they are for, who may read them, and what renews them."""

import datetime
import subprocess
import sys

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
import pytest

from tests.support import enclosures
from tfps.security import authority
from tfps.security import certificates
from tfps.security import certs_command

_SAN = x509.SubjectAlternativeName


def _names(folder, task):
  path, _ = certificates.paths(folder, task)
  certificate = x509.load_pem_x509_certificate(path.read_bytes())
  names = certificate.extensions.get_extension_for_class(_SAN).value
  dns = names.get_values_for_type(x509.DNSName)
  return dns, names.get_values_for_type(x509.UniformResourceIdentifier)


def test_a_certificate_names_its_job_and_task(tmp_path):
  folder = enclosures.make(tmp_path / 'certs')
  dns, (ps_uri,) = _names(folder, enclosures.PS)
  _, (worker_uri,) = _names(folder, enclosures.WORKER)
  assert dns == ['ps-0.tfps']
  job, _, task = ps_uri.partition('/ps/')
  assert task == '0'
  assert job.startswith('spiffe://tfps/')
  assert worker_uri == f'{job}/worker/0'


def test_only_their_owner_may_use_keys(tmp_path):
  folder = enclosures.make(tmp_path / 'certs')
  assert folder.stat().st_mode & 0o777 == 0o700
  modes = {path.stat().st_mode & 0o777 for path in folder.glob('*.key')}
  assert modes == {0o600}


def test_another_run_renews_certificates_of_the_same_ca(tmp_path):
  folder = enclosures.make(tmp_path / 'certs')
  ca = (folder / 'ca.pem').read_bytes()
  before = (folder / 'ps-0.pem').read_bytes()
  enclosures.make(folder, enclosures.PS)
  assert (folder / 'ca.pem').read_bytes() == ca
  assert (folder / 'ps-0.pem').read_bytes() != before
  for task in (enclosures.PS, enclosures.WORKER):
    enclosures.credentials(folder, task).check(task)


def test_a_ca_without_its_key_signs_nothing(tmp_path):
  folder = enclosures.make(tmp_path / 'certs', keeps_ca_key=False)
  with pytest.raises(ValueError, match=r'key .*ca\.key is missing'):
    enclosures.make(folder, enclosures.PS)


def test_the_key_of_another_ca_signs_nothing(tmp_path):
  folder = enclosures.make(tmp_path / 'certs')
  other = authority.Authority.new(valid=datetime.timedelta(hours=1))
  (folder / 'ca.key').write_bytes(other.key_pem())
  with pytest.raises(ValueError, match='the key is not that of the certif'):
    enclosures.make(folder, enclosures.PS)


def _of_no_job(*uris):
  key = authority._new_key()
  name = authority._common_name('other')
  builder = authority._builder(key, valid=datetime.timedelta(hours=1))
  builder = builder.subject_name(name).issuer_name(name)
  if uris:
    names = map(x509.UniformResourceIdentifier, uris)
    builder = builder.add_extension(_SAN(names), False)
  return authority._key_pem(key), builder.sign(key, hashes.SHA256())


def _write_rsa_key(folder):
  key = rsa.generate_private_key(65537, 2048)
  (folder / 'ca.key').write_bytes(authority._key_pem(key))


def _write_ca(*uris):
  def write(folder):
    key, certificate = _of_no_job(*uris)
    (folder / 'ca.key').write_bytes(key)
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    (folder / 'ca.pem').write_bytes(pem)

  return write


@pytest.mark.parametrize(
  ('write', 'complaint'),
  [
    (_write_rsa_key, 'the key is not one of an elliptic curve'),
    (_write_ca(), 'the certificate does not name a job'),
    (
      _write_ca('https://other/job'),
      r"the certificate names \['https://other/job'\], not one job",
    ),
  ],
)
def test_the_ca_of_another_program_signs_nothing(tmp_path, write, complaint):
  folder = enclosures.make(tmp_path / 'certs')
  write(folder)
  with pytest.raises(
    ValueError, match=rf'/ca\.pem and .*/ca\.key are no CA .*{complaint}\. Give'
  ):
    enclosures.make(folder, enclosures.PS)


def test_keys_are_not_written_where_others_may_use_them(tmp_path):
  (tmp_path / 'shared').mkdir(mode=0o755)
  with pytest.raises(ValueError, match=r'mode is 755\. Run chmod 700'):
    enclosures.make(tmp_path / 'shared')
  assert not list((tmp_path / 'shared').iterdir())


def test_the_command_makes_those_that_it_is_told(tmp_path, capsys):
  argv = [f'--directory={tmp_path / "certs"}', 'ps:3', 'worker:0']
  assert certs_command.main(argv) == 0
  assert 'ps:3, worker:0, valid for 168 hours' in capsys.readouterr().out
  names = sorted(path.name for path in (tmp_path / 'certs').iterdir())
  assert names == [
    *('ca.key', 'ca.pem', 'ps-3.key', 'ps-3.pem'),
    *('worker-0.key', 'worker-0.pem'),
  ]


def test_the_command_makes_those_of_the_environment(tmp_path, monkeypatch):
  monkeypatch.setenv(
    'TF_CONFIG',
    '{"cluster": {"ps": ["h:1"], "worker": ["h:2"]}, '
    '"task": {"type": "ps", "index": 0}}',
  )
  assert certs_command.main([f'--directory={tmp_path / "certs"}']) == 0
  assert (tmp_path / 'certs' / 'worker-0.key').exists()


@pytest.mark.parametrize(
  ('words', 'complaint'),
  [
    (['ps'], "'ps' is not a job and an index"),
    (['ps:x'], "'ps:x' is not a job and an index"),
    (['pss:0'], "names the job 'pss'"),
    (['ps:0', '--valid_hours=0'], "'0' is not 1, 2, 3"),
  ],
)
def test_wrong_words_are_named(tmp_path, capsys, words, complaint):
  with pytest.raises(SystemExit):
    certs_command.main([f'--directory={tmp_path}', *words])
  assert complaint in capsys.readouterr().err


@pytest.mark.parametrize(
  ('words', 'complaint'),
  [
    ([], 'no tasks. Name them'),
    (['ps:0', '--valid_hours=99999999'], 'more than 87600'),
  ],
)
def test_what_cannot_be_made_is_said(
  tmp_path, capsys, monkeypatch, words, complaint
):
  monkeypatch.delenv('TF_CONFIG', raising=False)
  argv = [f'--directory={tmp_path / "certs"}', *words]
  assert certs_command.main(argv) == 1
  assert complaint in capsys.readouterr().err


def test_a_missing_package_is_named_with_its_extra(tmp_path):
  program = (
    'import sys; sys.modules["cryptography"] = None\n'
    'from tfps.security import certs_command\n'
    f'sys.exit(certs_command.main(["--directory={tmp_path / "c"}", "ps:0"]))'
  )
  done = subprocess.run(
    [sys.executable, '-c', program], capture_output=True, text=True
  )
  assert done.returncode == 1
  assert 'pip install "tfps[secure]"' in done.stderr


def test_the_room_needs_no_tensorflow():
  program = (
    'import sys\n'
    'from tfps.security import authority, certs_command, enclose_command\n'
    'assert "tensorflow" not in sys.modules'
  )
  subprocess.run([sys.executable, '-c', program], check=True)
