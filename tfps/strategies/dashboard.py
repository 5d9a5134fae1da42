"""Web page of the job of a strategy, for its chief."""

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping
import dataclasses
import importlib.metadata
import os
import platform
import sys
from typing import Any
import weakref

import tensorflow as tf

from tfps.cluster import spec as spec_lib
from tfps.monitor import dashboard
from tfps.monitor import endpoint
from tfps.security import enclosure
from tfps.server import job_facts
from tfps.server import local_pool
from tfps.server import observation
from tfps.server import ps_addresses

_Strategy = Any  # a `runtime.Runtime`, whose module imports this one

_MAX_NAMES = 50  # of variables of each ps


def begin(
  strategy: _Strategy,
  task: spec_lib.Task,
  addresses: Callable[[], Mapping[spec_lib.Task, str]],
  address_book: ps_addresses.PsAddressBook,
  **settings: object,
) -> job_facts.JobFacts | None:
  """Starts the page, if it was asked for.

  Args:
    strategy: kept by a weak reference.
    task: the chief, which is this process.
    addresses: a method of the strategy that returns the current addresses of
      tasks that can be asked.
    address_book: of the ps.
    **settings: arguments of the strategy.

  Returns:
    The facts that it shows, to be stopped when training is over; None without
    a page.

  Raises:
    ValueError: the setting of the page's port is wrong.
  """
  method = weakref.WeakMethod(addresses)
  return _begin(
    strategy,
    task,
    lambda: _called(method),
    lambda: address_book.hosted,
    settings,
  )


def begin_alone(
  strategy: _Strategy, task: spec_lib.Task, *, is_chief: bool
) -> None:
  """Starts metrics and, if asked for, the page of a strategy without ps.

  The other workers do not answer: the page shows the chief alone.

  Args:
    strategy: as for `begin`.
    task: the task of this process.
    is_chief: whether it is the chief.
  """
  endpoint.begin(task, is_chief=is_chief)
  if is_chief:
    _begin(strategy, task, dict, tuple, {})


def _called(method: Any) -> Mapping[spec_lib.Task, str]:
  """Returns the result of a method, and nothing if its object is gone."""
  found = method()
  return {} if found is None else found()


def _begin(
  strategy: _Strategy,
  task: spec_lib.Task,
  addresses: Callable[[], Mapping[spec_lib.Task, str]],
  hosted: Callable[[], Collection[spec_lib.Task]],
  settings: Mapping[str, object],
) -> job_facts.JobFacts | None:
  reference = weakref.ref(strategy)
  configuration = _configuration(strategy, settings)

  def describe() -> Mapping[str, Any]:
    found = reference()
    placement = {} if found is None else _placement(found)
    return {'configuration': configuration, 'placement': placement}

  facts = job_facts.JobFacts(
    task,
    addresses=addresses,
    here=lambda: _here(task, addresses()),
    hosted=hosted,
    describe=describe,
  )
  if dashboard.begin(facts.since, is_secured=enclosure.is_within()):
    return facts
  facts.stop()
  return None


def _here(
  task: spec_lib.Task, addresses: Mapping[spec_lib.Task, str]
) -> dict[spec_lib.Task, observation.Observation]:
  """Returns observations of the tasks of this process."""
  own = observation.of_process(has_stacks=False)
  inside = [
    each
    for each, address in addresses.items()
    if each != task and local_pool.is_here(address)
  ]
  others = {
    each: dataclasses.replace(
      own, task=str(each), activities=[], events=[], metrics=[]
    )
    for each in inside
  }
  return {task: own, **others}


def _configuration(
  strategy: _Strategy, settings: Mapping[str, object]
) -> dict[str, str]:
  """Returns settings by name.

  The program's arguments and the environment are not among them: they may hold
  passwords.
  """
  keras = sys.modules.get('keras')
  found = {
    'program': os.path.basename(sys.argv[0]),
    'strategy': type(strategy).__name__,
    **{n: repr(value) for n, value in settings.items() if value is not None},
    'tfps': importlib.metadata.version('tfps'),
    'TensorFlow': tf.__version__,
    'Keras': getattr(keras, '__version__', None),
    'Python': platform.python_version(),
  }
  return {name: value for name, value in found.items() if value}


def _placement(strategy: _Strategy) -> dict[str, Any]:
  """Returns what is on each ps."""
  if not hasattr(strategy, 'placement_report'):  # there are no ps
    return {}
  report = strategy.placement_report()
  return {
    f'ps:{ps}': {
      'num_bytes': num_bytes,
      'replica_bytes': report.replica_bytes[ps],
      'num_variables': len(report.variables[ps]),
      'variables': report.variables[ps][:_MAX_NAMES],
    }
    for ps, num_bytes in enumerate(report.num_bytes)
  }
