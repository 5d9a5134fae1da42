"""Submits a job to Kubernetes, by kubectl.

`tfps launch --engine=kubernetes --image=registry.example/train:1 train.py`

The image has Python, tfps and the program, at the path that is given here. The
objects are those of `manifests`; `--dry_run` prints them.
"""

import argparse
from collections.abc import Sequence
import os
import shutil
import subprocess
import sys

from tfps._utils import timeouts
from tfps.cluster import validation
from tfps.launch import job as job_lib
from tfps.launch import manifest_settings
from tfps.launch import manifests

_KUBECTL = 'kubectl'
_NOT_HERE = {
  'log_dir': '`kubectl logs` has the output of pods',
  'preload': 'pods are not forked',
}


def add_options(parser: argparse.ArgumentParser) -> None:
  """Adds this engine's options."""
  group = parser.add_argument_group('kubernetes')
  group.add_argument(
    '--image',
    help='the container image with the program, and with tfps; stands for '
    '--engine=kubernetes',
  )
  group.add_argument(
    '--kind',
    choices=manifests.KINDS,
    default='jobset',
    help='what starts the pods: a JobSet; a StatefulSet for the ps and Jobs; '
    'or a TFJob of Kubeflow (default: jobset)',
  )
  group.add_argument(
    '--name',
    default='train',
    help='of the job; its host names begin with it (default: train)',
  )
  group.add_argument(
    '--namespace', default='', help="default: that of kubectl's context"
  )
  group.add_argument(
    '--resources',
    type=_resources,
    action='append',
    default=[],
    metavar='[JOB:]NAME=N,...',
    help='such as ps:cpu=4,memory=16Gi: what each task of the job gets, or '
    'each task; may be repeated (default: cpu=1,memory=2Gi)',
  )
  for option, what in (
    ('--claim', 'a persistent volume, such as for checkpoints, by its claim'),
    ('--secret', 'a secret, such as certificates'),
  ):
    group.add_argument(
      option,
      type=_mount,
      action='append',
      default=[],
      metavar='NAME:/FOLDER',
      help=f'{what}, at a folder of all tasks; may be repeated',
    )


def start(job: job_lib.Job, options: argparse.Namespace) -> int:
  """Submits a job, and returns without waiting for its end.

  Args:
    job: the job.
    options: the launcher's, see `command`.

  Returns:
    0 if the objects have been taken, or printed; otherwise kubectl's status.

  Raises:
    ValueError: an option is wrong, or there is no kubectl.
  """
  for name, reason in _NOT_HERE.items():
    if getattr(options, name):
      raise ValueError(f'--{name}: {reason}; leave it out.')
  settings = _settings(options)
  text = manifests.render(job, settings)
  if options.dry_run:
    print(text, end='')
    return 0
  return _apply(text, settings, num_tasks=len(job.tasks()))


def _settings(options: argparse.Namespace) -> manifest_settings.Settings:
  resources: dict[str, dict[str, str]] = {}
  for job, quantities in options.resources:
    resources.setdefault(job, {}).update(quantities)
  return manifest_settings.Settings(
    image=options.image or '',
    kind=options.kind,
    name=options.name,
    namespace=options.namespace,
    resources=resources,
    claims=_by_name('claim', options.claim),
    secrets=_by_name('secret', options.secret),
    silent_secs=options.silent_secs,
  )


def _by_name(option: str, pairs: Sequence[tuple[str, str]]) -> dict[str, str]:
  found: dict[str, str] = {}
  for name, folder in pairs:
    if name in found:
      raise ValueError(
        f'--{option}={name}:{folder}: it is at {found[name]} already. Give it '
        'once.'
      )
    found[name] = folder
  return found


def _apply(
  text: str, settings: manifest_settings.Settings, *, num_tasks: int
) -> int:
  command, times = _command(settings), timeouts.current()
  try:
    done = subprocess.run(
      [
        *command,
        'apply',
        '--filename=-',
        f'--request-timeout={times.kubectl_request_secs:g}s',
      ],
      input=text.encode(),
      timeout=times.kubectl_secs,
    )
  except subprocess.TimeoutExpired:
    print(
      'tfps launch: kubectl apply has not ended in '
      f'{times.kubectl_secs:g} seconds. See whether `kubectl get pods` '
      'answers.',
      file=sys.stderr,
    )
    return 1
  if done.returncode:
    print(
      f'tfps launch: kubectl apply failed with status {done.returncode}, which '
      'it explains above. --dry_run prints the objects.',
      file=sys.stderr,
    )
    return done.returncode
  print(_advice(' '.join(command), settings, num_tasks=num_tasks))
  return 0


def _command(settings: manifest_settings.Settings) -> list[str]:
  if shutil.which(_KUBECTL) is None:
    raise ValueError(
      f'{_KUBECTL} is not in PATH={os.environ.get("PATH", "")}. Install it, or '
      'have --dry_run print the objects and apply them elsewhere.'
    )
  namespace = settings.namespace
  return [_KUBECTL, *([f'--namespace={namespace}'] if namespace else [])]


def _advice(
  kubectl: str, settings: manifest_settings.Settings, *, num_tasks: int
) -> str:
  label = f'app.kubernetes.io/instance={settings.name}'
  kinds = {
    'jobset': 'jobset,',
    'statefulset': 'statefulset,service,',
    'tfjob': 'tfjob,',
  }[settings.kind] + 'job,configmap,poddisruptionbudget,networkpolicy'
  return (
    f'Watch:  {kubectl} get pods --selector={label}\n'
    f'Output: {kubectl} logs --selector={label} --prefix --follow '
    f'--max-log-requests={num_tasks}\n'
    f'Remove: {kubectl} delete {kinds} --selector={label}'
  )


def _resources(text: str) -> tuple[str, dict[str, str]]:
  job, colon, rest = text.rpartition(':')
  if colon:
    try:
      validation.job_of_task(job, f'--resources={text}')
    except ValueError as error:
      raise argparse.ArgumentTypeError(str(error)) from error
  pairs: Sequence[tuple[str, str, str]] = [
    part.partition('=') for part in rest.split(',')
  ]
  if any(not all(pair) for pair in pairs):
    raise argparse.ArgumentTypeError(
      f'{text!r} is not JOB:NAME=N,NAME=N or NAME=N,NAME=N'
    )
  return job, {name: quantity for name, _, quantity in pairs}


def _mount(text: str) -> tuple[str, str]:
  name, _, folder = text.partition(':')
  if not name or not folder:
    raise argparse.ArgumentTypeError(f'{text!r} is not NAME:/FOLDER')
  return name, folder
