"""The pods that Kubernetes makes of manifests, and the environment of each.

This does what the controllers of Jobs, StatefulSets, JobSets and TFJobs do as
far as a task can see it: indices, host names, and the values of variables.
"""

import dataclasses
import json
import re
from typing import Any

_REFERENCE = re.compile(r'\$\$|\$\(([^)]*)\)')


@dataclasses.dataclass(frozen=True)
class Pod:
  """A pod.

  Attributes:
    host: the name by which other pods of its namespace reach it.
    job: the component of which it is.
    container: its container, as in the manifest.
    env: the variables of the container.
    spec: of the pod.
    labels: of the pod.
  """

  host: str
  job: str
  container: dict[str, Any]
  env: dict[str, str]
  spec: dict[str, Any]
  labels: dict[str, str]

  def command(self) -> list[str]:
    """The words of the command, as the container gets them."""
    return [expand(word, self.env) for word in self.container['command']]


def expand(text: str, known: dict[str, str]) -> str:
  """Text with the values of known variables in it; unknown ones stay."""

  def value(match):
    if match[0] == '$$':
      return '$'
    return known.get(match[1], match[0])

  return _REFERENCE.sub(value, text)


def pods(documents: list[dict[str, Any]]) -> list[Pod]:
  """All pods of the documents."""
  found = []
  for each in documents:
    made = _MAKERS.get(each['kind'])
    found += made(each, documents) if made else []
  return found


def _of_job(job, documents, subdomain=None):
  spec, name = job['spec'], job['metadata']['name']
  assert spec['completionMode'] == 'Indexed'
  assert spec['completions'] == spec['parallelism']
  found = []
  for i in range(spec['completions']):
    key = 'batch.kubernetes.io/job-completion-index'
    # The controller appends its own variable, which comes too late for others.
    field = {'fieldPath': f"metadata.annotations['{key}']"}
    last = {'name': 'JOB_COMPLETION_INDEX', 'valueFrom': {'fieldRef': field}}
    domain = subdomain or spec['template']['spec'].get('subdomain')
    host = f'{name}-{i}.{domain}' if domain else ''
    found.append(
      _pod(
        spec['template'], host, documents, annotations={key: str(i)}, last=last
      )
    )
  return found


def _of_jobset(jobset, documents):
  network = jobset['spec']['network']
  assert network['enableDNSHostnames']
  assert network['publishNotReadyAddresses']
  name = jobset['metadata']['name']
  found = []
  for each in jobset['spec']['replicatedJobs']:
    for i in range(each['replicas']):
      job = {
        'metadata': {'name': f'{name}-{each["name"]}-{i}'},
        **each['template'],
      }
      found += _of_job(job, documents, network['subdomain'])
  return found


def _of_statefulset(stateful, documents):
  spec, name = stateful['spec'], stateful['metadata']['name']
  labels = spec['template']['metadata']['labels']
  assert spec['selector']['matchLabels'].items() <= labels.items()
  return [
    _pod(
      spec['template'],
      f'{name}-{i}.{spec["serviceName"]}',
      documents,
      labels={'apps.kubernetes.io/pod-index': str(i)},
    )
    for i in range(spec['replicas'])
  ]


def _of_tfjob(tfjob, documents):
  name = tfjob['metadata']['name']
  namespace = tfjob['metadata'].get('namespace', 'default')
  replicas = tfjob['spec']['tfReplicaSpecs']
  cluster = {
    kind.lower(): [
      f'{name}-{kind.lower()}-{i}.{namespace}.svc:{_tfjob_port(each)}'
      for i in range(each['replicas'])
    ]
    for kind, each in replicas.items()
    if kind != 'Evaluator'
  }
  found = []
  for kind, each in replicas.items():
    for i in range(each['replicas']):
      task = {'type': kind.lower(), 'index': i}
      config = {'cluster': cluster, 'task': task, 'environment': 'cloud'}
      last = {'name': 'TF_CONFIG', 'value': json.dumps(config)}
      host = f'{name}-{kind.lower()}-{i}.{namespace}.svc'
      labels = {'training.kubeflow.org/replica-index': str(i)}
      found.append(
        _pod(each['template'], host, documents, labels=labels, last=last)
      )
  return found


def _tfjob_port(replica):
  (container,) = replica['template']['spec']['containers']
  assert container['name'] == 'tensorflow'
  ports = {port['name']: port['containerPort'] for port in container['ports']}
  return ports['tfjob-port']


def _pod(
  template, host, documents, *, labels=None, annotations=None, last=None
):
  (container,) = template['spec']['containers']
  labels = template['metadata']['labels'] | (labels or {})
  facts = {'labels': labels, 'annotations': annotations or {}}
  env = {}
  for each in container['env'] + ([last] if last else []):
    assert each['name'] not in env
    env[each['name']] = _value(each, env, facts, documents)
  job = labels['app.kubernetes.io/component']
  return Pod(host, job, container, env, template['spec'], labels)


def _value(variable, known, facts, documents):
  if 'value' in variable:
    return expand(variable['value'], known)
  source = variable['valueFrom']
  if 'fieldRef' in source:
    path = source['fieldRef']['fieldPath']
    kind, key = re.fullmatch(r"metadata\.(\w+)\['(.*)'\]", path).groups()
    return facts[kind][key]
  wanted = source['configMapKeyRef']
  (found,) = (
    each
    for each in documents
    if each['kind'] == 'ConfigMap'
    and each['metadata']['name'] == wanted['name']
  )
  return found['data'][wanted['key']]


_MAKERS = {
  'Job': _of_job,
  'JobSet': _of_jobset,
  'StatefulSet': _of_statefulset,
  'TFJob': _of_tfjob,
}
