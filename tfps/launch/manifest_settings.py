"""Settings of a job that only Kubernetes has, checked as it checks them."""

from collections.abc import Mapping
import dataclasses
import pathlib
import re

# A name of the job is one of a service, too, and begins with a letter.
_NAME = re.compile(r'[a-z]([-a-z0-9]*[a-z0-9])?')
_OTHER_NAME = re.compile(r'[a-z0-9]([-.a-z0-9]*[a-z0-9])?')
_YAML_WORDS = ('y', 'n', 'yes', 'no', 'on', 'off', 'true', 'false', 'null')
_QUANTITY = re.compile(r'[0-9]+(\.[0-9]+)?(m|[kMGTP]|[KMGTP]i)?')
_RESOURCE = re.compile(r'[a-z0-9]([-a-z0-9./]*[a-z0-9])?')
_DEFAULTS = {'cpu': '1', 'memory': '2Gi'}


@dataclasses.dataclass(frozen=True)
class Settings:
  """The part of a job that only Kubernetes has.

  Attributes:
    image: the container image, which has Python, tfps and the program.
    kind: one of `manifests.KINDS`.
    name: of the job; those of its objects and host names begin with it.
    namespace: of the objects; empty for that of kubectl's context.
    resources: by job, or '' for all, then by name of the resource: quantities.
    claims: folders at which persistent volumes appear, by name of their claim.
    secrets: folders at which secrets appear, such as certificates, by name.
    silent_secs: seconds after which a task whose server no longer answers is
      killed, in steps of 10 and at least 30; 0 for never.

  Raises:
    ValueError: a value is missing, or one that Kubernetes would not take.
  """

  image: str
  kind: str = 'jobset'
  name: str = 'train'
  namespace: str = ''
  resources: Mapping[str, Mapping[str, str]] = dataclasses.field(
    default_factory=dict
  )
  claims: Mapping[str, str] = dataclasses.field(default_factory=dict)
  secrets: Mapping[str, str] = dataclasses.field(default_factory=dict)
  silent_secs: float = 10.0

  def __post_init__(self) -> None:
    if not self.image or self.image.split() != [self.image]:
      raise ValueError(
        f'--image={self.image}: give the image that has the program, such as '
        '--image=registry.example/train:1.'
      )
    if not _NAME.fullmatch(self.name) or self.name in _YAML_WORDS:
      raise ValueError(
        f'--name={self.name}: a name has a-z, 0-9 and -, begins with a letter, '
        'and is no word of YAML such as on.'
      )
    if self.namespace:
      _check_name('--namespace', self.namespace)
    for job, quantities in self.resources.items():
      for name, quantity in quantities.items():
        if not _RESOURCE.fullmatch(name) or not _QUANTITY.fullmatch(quantity):
          raise ValueError(
            f'--resources: {job or "every task"} has {name}={quantity}. Write '
            'such as cpu=2, cpu=500m or memory=8Gi.'
          )
    taken = {'/tmp': 'which every task has'}
    for option, volumes in (('claim', self.claims), ('secret', self.secrets)):
      for name, folder in volumes.items():
        given = f'--{option}={name}:{folder}'
        _check_name(f'--{option}', name)
        if not folder.startswith('/') or folder == '/':
          raise ValueError(f'{given}: {folder!r} is no folder such as /data.')
        if folder in taken:
          raise ValueError(
            f'{given}: {folder} is the folder of another volume, '
            f'{taken[folder]}. Choose another.'
          )
        taken[folder] = f'that of {given}'

  def check_mounted(self, folder: pathlib.PurePath) -> None:
    """Checks that pods have a folder of certificates.

    Args:
      folder: the folder.

    Raises:
      ValueError: no claim and no secret is there.
    """
    folders = [*self.claims.values(), *self.secrets.values()]
    if not any(folder.is_relative_to(each) for each in folders):
      raise ValueError(
        f'--secure_directory={folder}: pods have no such folder. Put what '
        f'`tfps certs` has made into a secret, and give --secret=NAME:{folder}.'
      )

  def quantities(self, job: str) -> dict[str, str]:
    """Returns the resources of each task of a job."""
    own = self.resources.get(job, {})
    return {**_DEFAULTS, **self.resources.get('', {}), **own}


def _check_name(option: str, value: str) -> None:
  if not _OTHER_NAME.fullmatch(value):
    raise ValueError(f'{option}={value}: a name has a-z, 0-9, - and dots.')
