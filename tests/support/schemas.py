"""Checks of manifests against the published schemas of what they are.

Kubernetes' own kinds are checked against its OpenAPI schemas, which the package
kubernetes-validate has; JobSets against the models in kubeflow-trainer-api and
TFJobs against those in kubeflow-training, both made from the operators' own
specifications. Fields that the schema does not know are wrong, too.
"""

import re

# The oldest that has all that is used, and the newest.
VERSIONS = ('1.29', '1.37')


def check(document, version):
  """Raises a `ValueError` that says what is wrong with a document."""
  kind = document['kind']
  if kind == 'JobSet':
    _check_jobset(document)
    for each in document['spec']['replicatedJobs']:
      metadata = {'name': each['name']}
      job = {'apiVersion': 'batch/v1', 'kind': 'Job', 'metadata': metadata}
      _check_own({**job, **each['template']}, version)
  elif kind == 'TFJob':
    for pod in _check_tfjob(document):
      _check_own(
        {
          'apiVersion': 'v1',
          'kind': 'PodTemplate',
          'metadata': {'name': 'pod'},
          'template': pod,
        },
        version,
      )
  else:
    _check_own(document, version)


def _check_own(document, version):
  import kubernetes_validate

  try:
    kubernetes_validate.validate(document, version, strict=True)
  except kubernetes_validate.ValidationError as error:
    path = '.'.join(map(str, error.path))
    raise ValueError(f'{document["kind"]}.{path}: {error.message}') from error


def _check_jobset(document):
  import kubeflow_trainer_api.models as models

  # A `pydantic` model, which drops what it does not know.
  model = models.JobsetV1alpha2JobSet.from_dict(document)
  if model.to_dict() != document:
    raise ValueError(f'JobSet: not all is known of {document}')


def _check_tfjob(document):
  """Checks a TFJob without its pods, and returns these."""
  pods = []
  _check_model(document, 'KubeflowOrgV1TFJob', 'TFJob', pods)
  return pods


def _check_model(value, kind, where, pods):
  """Checks a value against a type of the operator's models."""
  from kubeflow.training import models

  plain = {'str': str, 'int': int, 'bool': bool, 'V1ObjectMeta': dict}
  container = re.fullmatch(r'(list\[|dict\(str, )(\w+)[\])]', kind)
  if kind == 'V1PodTemplateSpec':
    pods.append(value)
  elif container:
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, each in items:
      _check_model(each, container[2], f'{where}.{key}', pods)
  elif kind in plain:
    if not isinstance(value, plain[kind]):
      raise ValueError(f'{where}: {value!r} is no {kind}')
  else:
    model = getattr(models, kind)
    types = {
      model.attribute_map[name]: each
      for name, each in model.openapi_types.items()
    }
    for name, each in value.items():
      if name not in types:
        raise ValueError(f'{where}: {name} is unknown')
      _check_model(each, types[name], f'{where}.{name}', pods)
