"""Values of a registry of metrics."""


def values(registry, family):
  """Returns the values of a family by task and labels."""
  return {
    (sample.task, *sample.labels): sample.value
    for sample in registry.collect()
    if sample.family is family
  }
