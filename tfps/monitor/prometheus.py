"""Metrics in the format of Prometheus, by its own client library."""

from collections.abc import Iterator
import itertools
from typing import Any

from tfps.monitor import families
from tfps.monitor import registry as registry_lib

_TOTAL = '_total'


def client() -> Any:
  """Returns the module `prometheus_client`.

  Raises:
    ImportError: it is not installed; names the extra that has it.
  """
  try:
    import prometheus_client
  except ImportError as error:
    raise ImportError(
      'Metrics for Prometheus need prometheus_client: pip install '
      '"tfps[metrics]".'
    ) from error
  return prometheus_client


class Collector:
  """Collector of `prometheus_client` that reads a registry.

  Args:
    registry: the registry.
  """

  def __init__(self, registry: registry_lib.Registry) -> None:
    self._registry = registry

  def collect(self) -> Iterator[Any]:
    """Yields a `prometheus_client.Metric` for each family."""
    samples = self._registry.collect()
    for family, own in itertools.groupby(samples, lambda s: s.family):
      name = family.name.removesuffix(_TOTAL)
      metric = client().Metric(name, family.help, family.kind.value)
      for sample in own:
        _add(metric, sample)
      yield metric

  def describe(self) -> list[Any]:
    """Returns no families, so that none is collected at registration."""
    return []


def text(registry: registry_lib.Registry) -> str:
  """Returns all metrics of a registry as Prometheus reads them."""
  prometheus = client()
  own = prometheus.CollectorRegistry(auto_describe=False)
  own.register(Collector(registry))
  found: bytes = prometheus.generate_latest(own)
  return found.decode()


def _add(metric: Any, sample: families.Sample) -> None:
  name, labels, value = sample.family.name, sample.label_pairs, sample.value
  if not isinstance(value, families.Buckets):
    metric.add_sample(name, labels, value)
    return
  for bound, count in zip(value.bounds, value.counts, strict=True):
    end = client().utils.floatToGoString(bound)
    metric.add_sample(f'{name}_bucket', {**labels, 'le': end}, count)
  metric.add_sample(f'{name}_count', labels, value.counts[-1])
  metric.add_sample(f'{name}_sum', labels, value.total)
