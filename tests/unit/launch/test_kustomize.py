"""The overlays in launch/kubernetes, as kubectl makes manifests of them."""

import json
import pathlib
import shutil
import subprocess

import pytest
import yaml

from tfps.launch import job as job_lib
from tfps.launch import manifest_settings
from tfps.launch import manifests

_FOLDER = pathlib.Path(__file__).parents[3] / 'launch' / 'kubernetes'
_JOBS = {
  'base': ('train', {}),
  'overlays/large': (
    'registry.example/train:1',
    {'num_workers': 4, 'num_ps': 2},
  ),
  'overlays/gpus': (
    'registry.example/train:1',
    {'num_workers': 4, 'num_ps': 2, 'gpus_per_worker': 1},
  ),
}

pytestmark = pytest.mark.skipif(
  shutil.which('kubectl') is None, reason='needs kubectl'
)


def _by_name(text):
  """Documents by kind and name, with the cluster as what it says."""
  found = {}
  for each in yaml.safe_load_all(text):
    if each['kind'] == 'ConfigMap':
      each['data']['cluster'] = json.loads(each['data']['cluster'])
    found[each['kind'], each['metadata']['name']] = each
  return found


@pytest.mark.parametrize('kind', manifests.KINDS)
@pytest.mark.parametrize(
  ('overlay', 'image', 'job'),
  [(name, *rest) for name, rest in _JOBS.items()],
  ids=_JOBS,
)
def test_an_overlay_is_what_the_launcher_renders(kind, overlay, image, job):
  made = subprocess.run(
    ['kubectl', 'kustomize', _FOLDER / kind / overlay],
    capture_output=True,
    text=True,
    check=True,
    timeout=60,
  )
  rendered = manifests.render(
    job_lib.Job(('train.py',), **job), manifest_settings.Settings(image, kind)
  )
  assert _by_name(made.stdout) == _by_name(rendered)
