"""The dashboard for Grafana and the alerts for Prometheus."""

import json
import pathlib
import re
import shutil
import subprocess

import pytest
import yaml

from tfps.monitor import families

_FOLDER = pathlib.Path(__file__).parents[3] / 'launch' / 'monitoring'
_FAMILIES = {
  value.name: value
  for value in vars(families).values()
  if isinstance(value, families.Family)
}
_PROMTOOL = shutil.which('promtool')


def _queries():
  panels = json.loads((_FOLDER / 'dashboard.json').read_text())['panels']
  for panel in panels:
    for target in panel['targets']:
      yield panel['title'], target['expr']
  for group in yaml.safe_load((_FOLDER / 'alerts.yml').read_text())['groups']:
    for rule in group['rules']:
      yield rule['alert'], rule['expr']


_QUERIES = list(_queries())


@pytest.mark.parametrize(
  ('title', 'query'), _QUERIES, ids=[title for title, _ in _QUERIES]
)
def test_a_query_names_metrics_and_labels_that_exist(title, query):
  names = set(re.findall(r'\btfps_\w+', query))
  for name in names:
    family = _FAMILIES.get(name) or _FAMILIES[name.removesuffix('_bucket')]
    is_bucket = family.kind is families.Kind.HISTOGRAM
    assert name.endswith('_bucket') == is_bucket
    assert ('rate(' + name in query) == family.name.endswith('_total') or (
      family in (families.LOST, families.RETURNED) or is_bucket
    )
  grouped = {
    label.strip()
    for group in re.findall(r'by \(([^)]*)\)', query)
    for label in group.split(',')
  }
  known = {label for name in names for label in _labels(name)}
  assert grouped <= known


def _labels(name):
  family = _FAMILIES.get(name) or _FAMILIES[name.removesuffix('_bucket')]
  more = {'le'} if family.kind is families.Kind.HISTOGRAM else set()
  return {'job', 'task', *family.labels, *more}


def test_panels_do_not_overlap():
  panels = json.loads((_FOLDER / 'dashboard.json').read_text())['panels']
  cells = [
    (panel['gridPos']['x'] + x, panel['gridPos']['y'] + y)
    for panel in panels
    for x in range(panel['gridPos']['w'])
    for y in range(panel['gridPos']['h'])
  ]
  assert len(set(cells)) == len(cells)
  assert max(x for x, _ in cells) < 24
  ids = [panel['id'] for panel in panels]
  assert len(set(ids)) == len(ids)


def test_alerts_tell_what_is_wrong():
  (group,) = yaml.safe_load((_FOLDER / 'alerts.yml').read_text())['groups']
  for rule in group['rules']:
    assert set(rule) == {'alert', 'expr', 'for', 'labels', 'annotations'}
    assert rule['labels']['severity'] in ('critical', 'warning')
    assert rule['annotations']['summary'].endswith('.')


@pytest.mark.skipif(not _PROMTOOL, reason='promtool is not installed')
def test_prometheus_takes_all_queries(tmp_path):
  rules = [
    {'alert': f'Query{i}', 'expr': query.replace('$__rate_interval', '1m')}
    for i, (_, query) in enumerate(_QUERIES)
  ]
  path = tmp_path / 'rules.yml'
  path.write_text(json.dumps({'groups': [{'name': 'all', 'rules': rules}]}))
  for file in (path, _FOLDER / 'alerts.yml'):
    done = subprocess.run(
      [_PROMTOOL, 'check', 'rules', file], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
