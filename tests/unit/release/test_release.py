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
