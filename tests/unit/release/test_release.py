"""What a release goes by: its version, the changelog and the workflow."""

import os
import pathlib
import re

import pytest
import yaml

_ROOT = pathlib.Path(__file__).parents[3]
_CHANGELOG = (_ROOT / 'CHANGELOG.md').read_text()


def _workflow():
  path = _ROOT / '.github' / 'workflows' / 'ci.yml'
  return yaml.load(path.read_text(), Loader=yaml.BaseLoader)


def test_the_changelog_begins_with_what_is_unreleased_and_the_version():
  text = (_ROOT / 'pyproject.toml').read_text()
  version = re.search(r'^version = "(.*)"$', text, re.M)[1]
  headings = re.findall(r'^## (.*)$', _CHANGELOG, re.M)
  assert headings[0] == 'Unreleased'
  assert re.fullmatch(
    rf'{re.escape(version)} - \d{{4}}(-\d\d){{2}}', headings[1]
  )


def test_all_files_of_the_package_are_in_the_wheel():
  tomllib = pytest.importorskip('tomllib', reason='needs Python 3.11')
  settings = tomllib.loads((_ROOT / 'pyproject.toml').read_text())
  patterns = settings['tool']['setuptools']['package-data']['tfps']
  package = _ROOT / 'tfps'
  listed = {path for each in patterns for path in package.glob(each)}
  others = {
    path
    for path in package.rglob('*')
    if path.is_file() and path.suffix not in ('.py', '.pyc')
  }
  assert package / 'monitor' / 'page' / 'uPlot.iife.min.js' in others
  assert others <= listed


def test_code_of_others_is_with_its_licence():
  project = (_ROOT / 'pyproject.toml').read_text()
  licence = 'tfps/monitor/page/uPlot.LICENSE'
  assert 'MIT License' in (_ROOT / licence).read_text()
  assert licence in re.search(r'^license-files = (.*)$', project, re.M)[1]
  assert 'MIT' in re.search(r'^license = (.*)$', project, re.M)[1]


def test_each_change_runs_the_checks_and_the_suite():
  workflow = _workflow()
  assert {'push', 'pull_request'} <= set(workflow['on'])
  commands = [step.get('run') for step in workflow['jobs']['test']['steps']]
  assert 'bash .ci/run' in commands
  assert os.access(_ROOT / '.ci' / 'run', os.R_OK)


def test_only_a_tag_that_passes_is_published():
  workflow = _workflow()
  jobs = workflow['jobs']
  assert workflow['on']['push']['tags'] == ['v*']
  assert jobs['publish']['needs'] == 'build'
  assert jobs['build']['needs'] == 'test'
  assert jobs['build']['if'] == "startsWith(github.ref, 'refs/tags/v')"


@pytest.mark.parametrize('job', ['test', 'build', 'publish'])
def test_only_the_job_that_publishes_is_trusted_to(job):
  workflow = _workflow()
  assert workflow['permissions'] == {'contents': 'read'}
  rights = workflow['jobs'][job].get('permissions')
  assert rights == ({'id-token': 'write'} if job == 'publish' else None)
