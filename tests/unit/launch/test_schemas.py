"""Rendered manifests against the published schemas of what they are."""

import copy
import functools
import pathlib
import shutil
import subprocess
import sysconfig

import pytest
import yaml

from tests.support import schemas
from tfps.launch import job as job_lib
from tfps.launch import manifest_settings
from tfps.launch import manifests

_REASON = 'needs tfps[engines]'
utils = pytest.importorskip('kubernetes_validate.utils', reason=_REASON)
pytest.importorskip('kubeflow_trainer_api', reason=_REASON)
pytest.importorskip('kubeflow.training', reason=_REASON)

_JOB = {
  'least': ({}, {}),
  'all': (
    {
      'num_workers': 3,
      'num_ps': 2,
      'num_evaluators': 1,
      'env': {'A': '1'},
      'gpus_per_worker': 2,
      'max_restarts': 5,
      'certificates': pathlib.Path('/certs'),
    },
    {
      'namespace': 'team',
      'resources': {'ps': {'memory': '16Gi'}},
      'claims': {'data': '/data'},
      'secrets': {'certs': '/certs'},
    },
  ),
  'no chief': ({'num_chiefs': 0}, {'silent_secs': 0}),
}

each_kind = pytest.mark.parametrize('kind', manifests.KINDS)


def _documents(kind, job, settings):
  text = manifests.render(
    job_lib.Job(('train.py',), **job),
    manifest_settings.Settings('train', kind, **settings),
  )
  return list(yaml.safe_load_all(text))


@each_kind
@pytest.mark.parametrize('version', schemas.VERSIONS)
@pytest.mark.parametrize(('job', 'settings'), _JOB.values(), ids=_JOB)
def test_manifests_are_valid(kind, version, job, settings):
  documents = _documents(kind, job, settings)
  assert documents
  for each in documents:
    schemas.check(each, version)


def _places(value, path=()):
  """The paths of all objects within a document."""
  if isinstance(value, dict):
    yield path
  items = value.items() if isinstance(value, dict) else enumerate(value)
  for key, each in items:
    if isinstance(each, dict | list):
      yield from _places(each, (*path, key))


# Whose names are free; the metadata of a custom object has schemas elsewhere.
_FREE = {'labels', 'matchLabels', 'data', 'requests', 'limits', 'selector'}
_CUSTOM = ('JobSet', 'TFJob')


def _with_unknown_fields(documents):
  """Documents that are wrong at one place each, and the place."""
  for document in documents:
    for path in _places(document):
      custom = document['kind'] in _CUSTOM and path == ('metadata',)
      if not _FREE & set(path) and not custom:
        changed = copy.deepcopy(document)
        place = changed
        for key in path:
          place = place[key]
        place['unknownField'] = {'unknown': 1}
        yield changed, path


@each_kind
def test_an_unknown_field_is_found_anywhere(kind, monkeypatch):
  # Read once, not each time.
  cached = functools.lru_cache(utils.schema_contents)
  monkeypatch.setattr(utils, 'schema_contents', cached)
  documents = _documents(kind, {'num_evaluators': 1}, {})
  wrong = list(_with_unknown_fields(documents))
  assert len(wrong) > 50
  accepted = [path for changed, path in wrong if not _is_refused(changed)]
  assert not accepted


def _is_refused(document):
  try:
    schemas.check(document, schemas.VERSIONS[-1])
  except ValueError:  # pydantic's own is one, too
    return True
  return False


def _hadolint():
  scripts = sysconfig.get_path('scripts')
  return shutil.which('hadolint', path=scripts) or shutil.which('hadolint')


@pytest.mark.skipif(not _hadolint(), reason='needs tfps[engines], for hadolint')
def test_the_docker_file_has_no_lint():
  done = subprocess.run(
    [_hadolint(), '--no-color', 'launch/kubernetes/Dockerfile'],
    capture_output=True,
    text=True,
    timeout=60,
  )
  assert (done.returncode, done.stdout + done.stderr) == (0, '')
