"""Renderer of a job's manifests for Kubernetes, from templates.

All kinds have the same pods. What differs is which object starts them, and
where a pod learns of its task:

- `jobset` and `statefulset`: a ConfigMap has the cluster, whose host names are
  known before, and Kubernetes puts it and the pod's index into `TF_CONFIG`.
- `tfjob`: the operator writes `TF_CONFIG`, and the pod's index as a label.

The evaluator is a Job of its own in each: training neither waits for it nor
ends with it.
"""

from collections.abc import Mapping
from importlib import resources
import json
import math
import pathlib
import re
import textwrap

from tfps.launch import job as job_lib
from tfps.launch import manifest_settings
from tfps.monitor import dashboard
from tfps.monitor import endpoint
from tfps.security import certificates
from tfps.security import doors

KINDS = ('jobset', 'statefulset', 'tfjob')
PORT = 2222
_TEMPLATES = 'templates/kubernetes'
_HOLE = re.compile(r'@\{(\w+)\}')
_SERVED = ('ps', 'worker')  # jobs whose tasks do nothing but serve, at first
_MAX_NAME = 63
_SUFFIX = 6  # that a controller adds to a pod's name
_INDEX = 'TFPS_TASK_INDEX'  # as in the templates
_INDEX_OF_JOB = (
  "metadata.annotations['batch.kubernetes.io/job-completion-index']"
)
_INDEX_OF_TFJOB = "metadata.labels['training.kubeflow.org/replica-index']"
_INDEX_OF_STATEFULSET = "metadata.labels['apps.kubernetes.io/pod-index']"
_LIVENESS_PERIOD = 10  # seconds, as in the template
_LEAST_FAILURES = 3


def render(job: job_lib.Job, settings: manifest_settings.Settings) -> str:
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

  def __init__(
    self, job: job_lib.Job, settings: manifest_settings.Settings
  ) -> None:
    self._job = job
    self._settings = settings
    self._is_tfjob = settings.kind == 'tfjob'
    _check_hosts(self._hosts(), settings)
    if job.certificates:
      settings.check_mounted(job.certificates)

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
      watched=self._watched('watched_port'),
      image=json.dumps(settings.image),
      command=_literal(self._job.command('python')),
      task=self._task(job, index),
      env=self._env(job),
      resources=self._resources(job),
      probes=self._probes(job),
      mounts='\n'.join(mount for mount, _ in self._volumes(job)),
      volumes='\n'.join(volume for _, volume in self._volumes(job)),
    )

  def _task(self, job: str, index: str) -> str:
    """Returns the variables that name a pod's task, and its certificate."""
    folder, parts = self._job.certificates, []
    if index or folder:
      parts.append(self._fill('task_index', index=index or _INDEX_OF_TFJOB))
    if index:
      parts.append(self._fill('task', job=job))
    if folder:
      within = _literal(str(folder))[1:-1]
      stem = f'{within}/{job}-$({_INDEX})'
      parts.append(
        self._fill('certificate', ca=f'{within}/{certificates.CA}', stem=stem)
      )
    return '\n'.join(parts)

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

  def _volumes(self, job: str) -> list[tuple[str, str]]:
    """Returns the mount of each volume of a job's pods, and the volume."""
    claims = enumerate(self._settings.claims.items())
    secrets = enumerate(self._settings.secrets.items())
    return [
      *(_volume('claim', i, *each) for i, each in claims),
      *(
        _volume('secret', i, name, folder, files=self._files(job, folder))
        for i, (name, folder) in secrets
      ),
    ]

  def _files(self, job: str, folder: str) -> str:
    """Returns what of a secret a job's pods have, if not all of it."""
    if pathlib.PurePath(folder) != self._job.certificates:
      return ''
    names = [certificates.CA]
    for task in self._job.tasks():
      if task.job == job:
        paths = certificates.paths(pathlib.Path(), task)
        names += map(str, paths)
    return self._fill(
      'secret_files',
      files='\n'.join(f'- {{key: {name}, path: {name}}}' for name in names),
    )

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
    return self._object('network_policy', watched=self._watched('watched_from'))

  def _watched(self, template: str) -> str:
    """Returns a template for each port of metrics and pages that is opened."""
    parts = []
    for name, variable in doors.PORTS.items():
      if text := self._job.env.get(variable, '').strip():
        host, port = endpoint.parse(text, f'--env={variable}')
        if port and not dashboard.is_loopback(host):
          parts.append(_fill(template, name=name, port=port))
    return '\n'.join(parts)

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


def _check_hosts(
  hosts: Mapping[str, list[str]], settings: manifest_settings.Settings
) -> None:
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


def _volume(
  kind: str, i: int, name: str, folder: str, **parts: str
) -> tuple[str, str]:
  """Returns the mount of a claim or secret at a folder, and its volume."""
  values = {'volume': f'{kind}-{i}', 'name': json.dumps(name), **parts}
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
