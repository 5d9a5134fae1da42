"""Renderer of a job's manifests for Kubernetes, from templates.

All kinds have the same pods. What differs is which object starts them, and
where a pod learns of its task:

- `jobset` and `statefulset`: a ConfigMap has the cluster, whose host names are
  known before, and Kubernetes puts it and the pod's index into `TF_CONFIG`.
- `tfjob`: the operator writes `TF_CONFIG`.

The evaluator is a Job of its own in each: training neither waits for it nor
ends with it.
"""

from collections.abc import Mapping
import dataclasses
from importlib import resources
import json
import math
import re
import textwrap

from tfps.launch import job as job_lib

KINDS = ('jobset', 'statefulset', 'tfjob')
PORT = 2222
_TEMPLATES = 'templates/kubernetes'
_HOLE = re.compile(r'@\{(\w+)\}')
# A name of the job is one of a service, too, and begins with a letter.
_NAME = re.compile(r'[a-z]([-a-z0-9]*[a-z0-9])?')
_OTHER_NAME = re.compile(r'[a-z0-9]([-.a-z0-9]*[a-z0-9])?')
_YAML_WORDS = ('y', 'n', 'yes', 'no', 'on', 'off', 'true', 'false', 'null')
_QUANTITY = re.compile(r'[0-9]+(\.[0-9]+)?(m|[kMGTP]|[KMGTP]i)?')
_RESOURCE = re.compile(r'[a-z0-9]([-a-z0-9./]*[a-z0-9])?')
_SERVED = (
  'ps',
  'worker',
)  # the jobs whose tasks do nothing but serve, at first
_MAX_NAME = 63
_SUFFIX = 6  # that a controller adds to a pod's name
_INDEX_OF_JOB = (
  "metadata.annotations['batch.kubernetes.io/job-completion-index']"
)
_INDEX_OF_STATEFULSET = "metadata.labels['apps.kubernetes.io/pod-index']"
_LIVENESS_PERIOD = 10  # seconds, as in the template
_LEAST_FAILURES = 3
_DEFAULTS = {'cpu': '1', 'memory': '2Gi'}


@dataclasses.dataclass(frozen=True)
class Settings:
  """The part of a job that only Kubernetes has.

  Attributes:
    image: the container image, which has Python, tfps and the program.
    kind: one of `KINDS`.
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

  def quantities(self, job: str) -> dict[str, str]:
    """Returns the resources of each task of a job."""
    own = self.resources.get(job, {})
    return {**_DEFAULTS, **self.resources.get('', {}), **own}


def _check_name(option: str, value: str) -> None:
  if not _OTHER_NAME.fullmatch(value):
    raise ValueError(f'{option}={value}: a name has a-z, 0-9, - and dots.')


def render(job: job_lib.Job, settings: Settings) -> str:
  """Returns a job's manifests: documents of YAML.

  Args:
    job: the job.
    settings: what only Kubernetes has.

  Raises:
    ValueError: host names would be too long.
  """
  return _Renderer(job, settings).render()


class _Renderer:
  """Renders one job."""

  def __init__(self, job: job_lib.Job, settings: Settings) -> None:
    self._job = job
    self._settings = settings
    self._is_tfjob = settings.kind == 'tfjob'
    _check_hosts(self._hosts(), settings)

  def render(self) -> str:
    kind = {
      'jobset': self._jobset,
      'statefulset': self._statefulset,
      'tfjob': self._tfjob,
    }[self._settings.kind]
    documents = [*kind(), self._network_policy()]
    if self._job.num_ps:
      documents.insert(-1, self._budget())
    if self._job.num_evaluators:
      if self._is_tfjob:
        documents.append(self._cluster())
      documents.append(self._plain_job(job_lib.EVALUATOR, 1))
    return '---\n'.join(f'{document}\n' for document in documents)

  def _jobset(self) -> list[str]:
    jobs = [
      self._fill('replicated_job', job=job, spec=self._job_spec(job, number))
      for job, number in self._job.sizes().items()
    ]
    success = 'chief' if self._job.num_chiefs else 'worker'
    jobset = self._object('jobset', success=success, jobs='\n'.join(jobs))
    return [self._cluster(), jobset]

  def _statefulset(self) -> list[str]:
    number = self._job.num_ps
    pod = self._pod('ps', index=_INDEX_OF_STATEFULSET, restart='Always')
    trainers = [
      self._plain_job(job, number)
      for job, number in self._job.sizes().items()
      if job != 'ps'
    ]
    ps = [self._object('statefulset', '-ps', job='ps', number=number, pod=pod)]
    service = self._object('service', port=PORT, port_name='grpc')
    return [self._cluster(), service, *(ps if number else []), *trainers]

  def _tfjob(self) -> list[str]:
    types = {'chief': 'Chief', 'ps': 'PS', 'worker': 'Worker'}
    replicas = [
      self._fill(
        'replica', type=types[job], number=number, pod=self._pod(job, index='')
      )
      for job, number in self._job.sizes().items()
    ]
    return [
      self._object(
        'tfjob',
        max_restarts=self._job.max_restarts,
        success='' if self._job.num_chiefs else 'successPolicy: AllWorkers',
        replicas='\n'.join(replicas),
      )
    ]

  def _plain_job(self, job: str, number: int) -> str:
    return self._object('job', f'-{job}', spec=self._job_spec(job, number))

  def _job_spec(self, job: str, number: int) -> str:
    statuses = ', '.join(map(str, range(1, 128)))
    return self._fill(
      'job_spec',
      number=number,
      max_restarts=self._job.max_restarts,
      statuses='\n'.join(textwrap.wrap(statuses, 66)),
      pod=self._pod(job, index=_INDEX_OF_JOB, restart='Never'),
    )

  def _pod(self, job: str, *, index: str, restart: str = '') -> str:
    """Returns the template of a pod.

    Args:
      job: the task's.
      index: the field with the task's index; empty where the operator writes
        TF_CONFIG.
      restart: the pod's policy; empty to leave it to the operator.
    """
    settings = self._settings
    named = settings.kind == 'statefulset' and job != job_lib.EVALUATOR
    return self._fill(
      'pod',
      job=job,
      restart=f'restartPolicy: {restart}' if restart else '',
      subdomain=f'subdomain: {settings.name}' if named and job != 'ps' else '',
      grace_secs=math.ceil(self._job.grace_secs),
      # The operator takes the task's container and port by these names.
      container='tensorflow' if self._is_tfjob and not restart else 'tfps',
      port_name='tfjob-port' if self._is_tfjob and not restart else 'grpc',
      port=PORT,
      image=json.dumps(settings.image),
      command=_literal(('python', *self._job.program)),
      task=self._fill('task', job=job, index=index) if index else '',
      env=self._env(job),
      resources=self._resources(job),
      probes=self._probes(job),
      mounts='\n'.join(mount for mount, _ in self._volumes()),
      volumes='\n'.join(volume for _, volume in self._volumes()),
    )

  def _env(self, job: str) -> str:
    hidden = self._job.gpus_per_worker is not None and job != 'worker'
    # The only folder of the image that can be written to.
    env = {'HOME': '/tmp', **self._job.added_env()}
    if hidden:
      env.setdefault('CUDA_VISIBLE_DEVICES', '-1')
    return '\n'.join(
      f'- name: {json.dumps(name)}\n  value: {_literal(value)}'
      for name, value in env.items()
    )

  def _resources(self, job: str) -> str:
    quantities = self._settings.quantities(job)
    # Without a limit of CPUs: one would slow the probes, too.
    limits = {n: q for n, q in quantities.items() if n != 'cpu'}
    gpus = self._job.gpus_per_worker
    if gpus and job == 'worker':
      limits['nvidia.com/gpu'] = str(gpus)
    parts = {'requests': quantities, 'limits': limits}
    return '\n'.join(f'{part}: {json.dumps(q)}' for part, q in parts.items())

  def _probes(self, job: str) -> str:
    settings = self._settings
    if job == job_lib.EVALUATOR:
      return ''
    parts = []
    # The operator's services have only pods that are ready; all have to be.
    if not self._is_tfjob:
      if job == 'ps':
        parts.append(self._fill('startup_probe'))
      if job in _SERVED:
        parts.append(self._fill('readiness_probe'))
    if settings.silent_secs:
      failures = math.ceil(settings.silent_secs / _LIVENESS_PERIOD)
      failures = max(_LEAST_FAILURES, failures)
      parts.append(self._fill('liveness_probe', failures=failures))
    return '\n'.join(parts)

  def _volumes(self) -> list[tuple[str, str]]:
    """Returns the mount of each volume, and the volume."""
    claims = enumerate(self._settings.claims.items())
    secrets = enumerate(self._settings.secrets.items())
    return [
      *(_volume('claim', i, *each) for i, each in claims),
      *(_volume('secret', i, *each) for i, each in secrets),
    ]

  def _cluster(self) -> str:
    return self._object(
      'cluster', '-cluster', cluster=json.dumps(self._hosts())
    )

  def _hosts(self) -> dict[str, list[str]]:
    """Returns the addresses of each job of the cluster."""
    name = self._settings.name
    form = {
      'jobset': f'{name}-%s-0-%d.{name}:{PORT}',
      'statefulset': f'{name}-%s-%d.{name}:{PORT}',
      'tfjob': f'{name}-%s-%d:{PORT}',
    }[self._settings.kind]
    return {
      job: [form % (job, i) for i in range(number)]
      for job, number in self._job.sizes().items()
    }

  def _budget(self) -> str:
    available = self._job.num_ps - 1
    return self._object('disruption_budget', '-ps', available=available)

  def _network_policy(self) -> str:
    return self._object('network_policy')

  def _object(self, template: str, suffix: str = '', **values: object) -> str:
    """Returns a document whose name is the job's with a suffix."""
    name, namespace = self._settings.name, self._settings.namespace
    metadata = _fill(
      'metadata',
      name=name + suffix,
      instance=name,
      namespace=f'namespace: {json.dumps(namespace)}' if namespace else '',
    )
    return self._fill(template, metadata=metadata, **values)

  def _fill(self, template: str, **values: object) -> str:
    return _fill(template, name=self._settings.name, **values)


def _check_hosts(hosts: Mapping[str, list[str]], settings: Settings) -> None:
  names = [
    re.split('[.:]', host)[0] for jobs in hosts.values() for host in jobs
  ]
  longest = max(names, key=len)
  surplus = len(longest) + _SUFFIX - _MAX_NAME
  if surplus > 0:
    raise ValueError(
      f'--name={settings.name}: the host name {longest} is longer than '
      f'{_MAX_NAME - _SUFFIX} characters. Shorten the name by {surplus}.'
    )


def _volume(kind: str, i: int, name: str, folder: str) -> tuple[str, str]:
  """Returns the mount of a claim or secret at a folder, and its volume."""
  values = {'volume': f'{kind}-{i}', 'name': json.dumps(name)}
  folder = json.dumps(folder)
  return (
    _fill(f'{kind}_mount', folder=folder, **values),
    _fill(f'{kind}_volume', **values),
  )


def _literal(value: object) -> str:
  """Returns words as YAML, in which Kubernetes expands no variables."""
  return json.dumps(value, ensure_ascii=False).replace('$', '$$')


def _fill(template: str, **values: object) -> str:
  """Returns a template with values in its holes, such as `@{name}`.

  A value that is alone on its line is indented as its hole is, and the line is
  left out if the value is empty.
  """
  path = resources.files('tfps.launch') / _TEMPLATES / f'{template}.yaml'
  lines = []
  for line in path.read_text().splitlines():
    alone = _HOLE.fullmatch(line.strip())
    if alone:
      block = str(values[alone[1]])
      indent = line[: len(line) - len(line.lstrip())]
      lines += textwrap.indent(block, indent).splitlines()
    else:
      lines.append(_HOLE.sub(lambda hole: str(values[hole[1]]), line))
  return '\n'.join(lines)
