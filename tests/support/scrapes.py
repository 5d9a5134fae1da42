"""Scrapes of tasks' metrics, as Prometheus makes them."""

import urllib.request

from prometheus_client import parser

from tfps._utils import ports


def free_ports(number):
  """The first of so many consecutive ports, which no other test picks."""
  for first in range(20_000, 32_000, number):
    if all(map(ports.take, range(first, first + number))):
      return first
  raise AssertionError('no consecutive ports are free')


def scrape(port):
  """All values of a task by name and labels; none if it does not answer."""
  address = f'http://127.0.0.1:{port}/metrics'
  try:
    with urllib.request.urlopen(address, timeout=10) as page:
      text = page.read().decode()
  except OSError:
    return {}
  return {
    (sample.name, *sorted(sample.labels.items())): sample.value
    for family in parser.text_string_to_metric_families(text)
    for sample in family.samples
  }


def by_task(found, name):
  """The values of a metric by task, summed over other labels."""
  values = {}
  for (sample, *labels), value in found.items():
    if sample == name:
      task = dict(labels)['task']
      values[task] = values.get(task, 0) + value
  return values
