"""CA of one job, which issues certificates to its tasks.

It needs the package `cryptography`, so it is imported only to make some.
"""

import datetime
import secrets

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

_TRUST_DOMAIN = 'spiffe://tfps/'
_SKEW = datetime.timedelta(hours=1)  # of the clocks of hosts
_PEM = serialization.Encoding.PEM
_USAGES = (
  'digital_signature',
  'content_commitment',
  'key_encipherment',
  'data_encipherment',
  'key_agreement',
  'key_cert_sign',
  'crl_sign',
  'encipher_only',
  'decipher_only',
)


class Authority:
  """A CA and its key.

  Args:
    certificate: of the CA; it names the job by a URI.
    key: of the CA.

  Raises:
    ValueError: it is not the CA of a job.
  """

  def __init__(
    self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey
  ) -> None:
    self._certificate = certificate
    self._key = key
    self._uri = _uri(certificate)
    if certificate.public_key() != key.public_key():
      raise ValueError('the key is not that of the certificate')

  @classmethod
  def new(cls, *, valid: datetime.timedelta) -> 'Authority':
    """Makes the CA of a job whose name is random.

    Args:
      valid: for how long it is valid from now on.
    """
    key = _new_key()
    job = secrets.token_hex(8)
    uri = x509.UniformResourceIdentifier(f'{_TRUST_DOMAIN}{job}')
    name = _common_name(f'tfps job {job}')
    builder = (
      _builder(key, valid=valid)
      .subject_name(name)
      .issuer_name(name)
      .add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
      .add_extension(_usage('key_cert_sign', 'crl_sign'), True)
      .add_extension(x509.SubjectAlternativeName([uri]), False)
    )
    return cls(builder.sign(key, hashes.SHA256()), key)

  @classmethod
  def load(cls, certificate_pem: bytes, key_pem: bytes) -> 'Authority':
    """Returns the CA that `pem` and `key_pem` have given.

    Args:
      certificate_pem: its certificate.
      key_pem: its key.

    Raises:
      ValueError: they are not a certificate of a CA and its key.
    """
    key = serialization.load_pem_private_key(key_pem, None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
      raise ValueError('the key is not one of an elliptic curve')
    return cls(x509.load_pem_x509_certificate(certificate_pem), key)

  def pem(self) -> bytes:
    """Returns the CA's certificate."""
    return self._certificate.public_bytes(_PEM)

  def key_pem(self) -> bytes:
    """Returns the CA's key, without a password."""
    return _key_pem(self._key)

  def issue(
    self, job: str, index: int, *, dns_name: str, valid: datetime.timedelta
  ) -> tuple[bytes, bytes]:
    """Issues a certificate for a new key.

    Args:
      job: of the task that it is for.
      index: of that task.
      dns_name: the name that its peers verify.
      valid: for how long it is valid from now on.

    Returns:
      The certificate and the key.
    """
    key = _new_key()
    usages = x509.oid.ExtendedKeyUsageOID
    names = [
      x509.DNSName(dns_name),
      x509.UniformResourceIdentifier(f'{self._uri}/{job}/{index}'),
    ]
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(
      self._key.public_key()
    )
    builder = (
      _builder(key, valid=valid)
      .subject_name(_common_name(f'{job}:{index}'))
      .issuer_name(self._certificate.subject)
      .add_extension(x509.BasicConstraints(ca=False, path_length=None), True)
      .add_extension(_usage('digital_signature'), True)
      .add_extension(
        x509.ExtendedKeyUsage([usages.SERVER_AUTH, usages.CLIENT_AUTH]), False
      )
      .add_extension(issuer, False)
      .add_extension(x509.SubjectAlternativeName(names), False)
    )
    certificate = builder.sign(self._key, hashes.SHA256())
    return certificate.public_bytes(_PEM), _key_pem(key)


def _uri(certificate: x509.Certificate) -> str:
  try:
    names = certificate.extensions.get_extension_for_class(
      x509.SubjectAlternativeName
    )
  except x509.ExtensionNotFound as error:
    raise ValueError('the certificate does not name a job') from error
  uris = names.value.get_values_for_type(x509.UniformResourceIdentifier)
  if len(uris) != 1 or not uris[0].startswith(_TRUST_DOMAIN):
    raise ValueError(f'the certificate names {uris}, not one job')
  return uris[0]


def _builder(
  key: ec.EllipticCurvePrivateKey, *, valid: datetime.timedelta
) -> x509.CertificateBuilder:
  now = datetime.datetime.now(datetime.timezone.utc)
  public = key.public_key()
  return (
    x509.CertificateBuilder()
    .public_key(public)
    .serial_number(x509.random_serial_number())
    .not_valid_before(now - _SKEW)
    .not_valid_after(now + valid)
    .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), False)
  )


def _common_name(name: str) -> x509.Name:
  return x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, name)])


def _usage(*names: str) -> x509.KeyUsage:
  return x509.KeyUsage(**{usage: usage in names for usage in _USAGES})


def _new_key() -> ec.EllipticCurvePrivateKey:
  return ec.generate_private_key(ec.SECP256R1())


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
  return key.private_bytes(
    _PEM,
    serialization.PrivateFormat.PKCS8,
    serialization.NoEncryption(),
  )
