"""Parser of a Slurm step's environment variables.

`srun --ntasks=6 --resv-ports=2` starts the tasks of a step. Slurm reserves the
same ports on each of its nodes; the first task on a node takes the first port,
the second the second. Process ids are assigned to the jobs in their order.

A heterogeneous step, as of `srun --het-group=0 ... : --het-group=1 ...`, has
components that share no node. Process ids go on from one to the next, while the
step's nodes are listed in the order of their names. Each component reserves
ports of its own, and all see them one after the other.

Where Slurm reserves none, which needs MpiParams=ports= in its slurm.conf, ports
follow from the ids of the job and the step.
"""

from collections.abc import Iterator
from collections.abc import Mapping
import itertools
import math
import re

from absl import logging

from tfps.cluster import validation

_MAX_HOSTS = 100_000
_GROUP = 'SLURM_JOB_NODELIST_HET_GROUP_'

# Above those of services, and below those that Linux gives to connections.
_FREE_PORTS = range(10_000, 32_000)
_MIN_PORTS = 50  # by which steps are apart
_PLACES_BETWEEN_STEPS = 37  # jobs have ids in a row, and so have their steps
_HOSTS = re.compile(
  r'(?:[^\s,\[\]]|\[[0-9]+(?:-[0-9]+)?(?:,[0-9]+(?:-[0-9]+)?)*\])+'
)


def parse(
  env: Mapping[str, str], jobs: Mapping[str, int]
) -> tuple[dict[str, list[str]], tuple[str, int]]:
  """Reads a cluster from a Slurm step.

  Args:
    env: the step's environment.
    jobs: job -> number of its tasks, in the order of their process ids. An
      evaluator gets a process but, being no part of the cluster, no address.

  Returns:
    The addresses of each job, and this process' job and index.

  Raises:
    ValueError: a variable is missing or wrong, or the jobs do not fit the step.
  """
  addresses = _addresses(env)
  tasks = _tasks(jobs)
  if len(tasks) != len(addresses):
    raise ValueError(
      f'Slurm: the jobs {dict(jobs)} have {len(tasks)} tasks, but '
      f'{_quote(env, "SLURM_STEP_TASKS_PER_NODE")} starts {len(addresses)}. '
      'Change the jobs, or --ntasks of srun.'
    )
  listed: dict[str, list[str]] = {job: [] for job in jobs if job != 'evaluator'}
  for (job, _), address in zip(tasks, addresses, strict=True):
    if job in listed:
      listed[job].append(address)
  return listed, tasks[_process(env, len(tasks))]


def parse_jobs(text: str, source: str) -> dict[str, int]:
  """Parses jobs and their numbers of tasks, such as 'chief:1,ps:2,worker:4'.

  Args:
    text: to be parsed.
    source: the name of the variable, for the error message.

  Returns:
    Job -> number of tasks, in the given order.

  Raises:
    ValueError: the text is malformed or repeats a job.
  """
  jobs: dict[str, int] = {}
  for item in text.split(','):
    match = re.fullmatch(r'\s*(\w+)\s*:\s*([1-9][0-9]{0,5})\s*', item)
    if not match or match[1] in jobs:
      raise ValueError(
        f'{source}={text!r}: {item!r} is not a new job and the number of its '
        'tasks. Write it as in chief:1,ps:2,worker:4.'
      )
    jobs[validation.job_of_task(match[1], source)] = int(match[2])
  return jobs


def expand_hosts(text: str, source: str) -> list[str]:
  """Expands a list of hosts such as 'n[01-03,7],m2', keeping the order.

  Args:
    text: to be expanded.
    source: the name of the variable, for the error message.

  Raises:
    ValueError: the text is malformed, or names too many hosts.
  """
  hosts: list[str] = []
  for part in re.split(r',(?![^\[]*\])', text):
    if not _HOSTS.fullmatch(part):
      raise ValueError(
        f'{source}={text!r}: {part!r} is not a host or a range of hosts. '
        'Write it as Slurm does, as in n[01-03,7],m2.'
      )
    hosts += _expand(part, f'{source}={text!r}')
  return hosts


def expand_counts(text: str, source: str) -> list[int]:
  """Expands a list of counts, such as '2(x3),1' to [2, 2, 2, 1].

  Args:
    text: to be expanded.
    source: the name of the variable, for the error message.

  Raises:
    ValueError: the text is malformed.
  """
  counts: list[int] = []
  for part in text.split(','):
    match = re.fullmatch(r'([1-9][0-9]{0,4})(?:\(x([1-9][0-9]{0,4})\))?', part)
    if not match:
      raise ValueError(
        f'{source}={text!r}: {part!r} is not a number of tasks. '
        'Write it as Slurm does, as in 2(x3),1.'
      )
    counts += [int(match[1])] * int(match[2] or 1)
  return counts


def expand_ports(text: str, source: str) -> list[int]:
  """Expands a list of ports such as '12000-12002,12010'.

  Args:
    text: to be expanded.
    source: the name of the variable, for the error message.

  Raises:
    ValueError: the text is malformed.
  """
  ports: list[int] = []
  for part in text.removeprefix('[').removesuffix(']').split(','):
    match = re.fullmatch('([0-9]{1,5})(?:-([0-9]{1,5}))?', part)
    low, high = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 0 < low <= high < 65536:
      raise ValueError(
        f'{source}={text!r}: {part!r} is not a range of ports from 1 to 65535. '
        'Write it as Slurm does, as in 12000-12002.'
      )
    ports += range(low, high + 1)
  return ports


def _addresses(env: Mapping[str, str]) -> list[str]:
  """Returns the address of each process of the step, by process id."""
  components = _components(env)
  counts = [n for nodes in components for n in nodes.values()]
  _check_distribution(env, counts)
  ports = _ports(env, max(counts), len(components))
  return [
    f'{host}:{port}'
    for nodes, own_ports in zip(components, ports, strict=True)
    for host, n in nodes.items()
    for port in own_ports[:n]
  ]


def _components(env: Mapping[str, str]) -> list[dict[str, int]]:
  """Returns each component's nodes, with the number of their tasks.

  All are in the order of the ids of their processes.
  """
  hosts, counts = _hosts(env), _counts(env)
  if len(hosts) != len(counts):
    raise ValueError(
      f'{_quote(env, "SLURM_STEP_NODELIST")} names {len(hosts)} nodes, but '
      f'{_quote(env, "SLURM_STEP_TASKS_PER_NODE")} {len(counts)}. '
      'Start this program by srun, which sets both.'
    )
  tasks = dict(zip(hosts, counts, strict=True))
  groups = [
    {host: tasks.pop(host) for host in group if host in tasks}
    for group in _groups(env) or [hosts]
  ]
  if tasks:
    raise ValueError(
      f'{_quote(env, "SLURM_STEP_NODELIST")} has {", ".join(tasks)}, which no '
      f'{_GROUP}0, {_GROUP}1, ... names. Start this program by srun in the '
      "heterogeneous job's own script."
    )
  return list(filter(None, groups))


def _groups(env: Mapping[str, str]) -> list[list[str]]:
  """Returns the nodes of each component of a heterogeneous job."""
  name = 'SLURM_HET_SIZE'
  size = validation.index(env[name], name) if env.get(name) else 0
  names = [f'{_GROUP}{i}' for i in range(size)]
  return [expand_hosts(_value(env, name), name) for name in names]


def _hosts(env: Mapping[str, str]) -> list[str]:
  name = 'SLURM_STEP_NODELIST'
  return expand_hosts(_value(env, name), name)


def _counts(env: Mapping[str, str]) -> list[int]:
  name = 'SLURM_STEP_TASKS_PER_NODE'
  return expand_counts(_value(env, name), name)


def _ports(
  env: Mapping[str, str], num_needed: int, num_components: int
) -> list[list[int]]:
  """Returns the ports of each component."""
  name = 'SLURM_STEP_RESV_PORTS'
  if not env.get(name, '').strip():
    return [_derived_ports(env, num_needed)] * num_components
  ports = expand_ports(_value(env, name), name)
  share = len(ports) // num_components
  if share < num_needed or len(ports) % num_components:
    raise ValueError(
      f'{_quote(env, name)} has {len(ports)} ports for {num_needed} tasks on '
      f'one node{_in_each(num_components)}. Start the step with srun '
      f'--resv-ports={num_needed}{_in_each(num_components)}.'
    )
  return [ports[i : i + share] for i in range(0, len(ports), share)]


def _in_each(num_components: int) -> str:
  return (
    '' if num_components == 1 else f' in each of {num_components} components'
  )


def _derived_ports(env: Mapping[str, str], num_needed: int) -> list[int]:
  """Returns ports that other steps on a node are unlikely to have."""
  job, step = (
    validation.index(_value(env, name), name)
    for name in ('SLURM_JOB_ID', 'SLURM_STEP_ID')
  )
  width = max(_MIN_PORTS, num_needed)
  num_places = len(_FREE_PORTS) // width
  if not num_places:
    raise ValueError(
      f'{_quote(env, "SLURM_STEP_TASKS_PER_NODE")} has {num_needed} tasks on '
      f'one node, and only {len(_FREE_PORTS)} ports are tried. Start the step '
      f'with srun --resv-ports={num_needed}, or on more nodes.'
    )
  place = (job + _PLACES_BETWEEN_STEPS * step) % num_places
  ports = list(_FREE_PORTS[place * width :][:num_needed])
  logging.info(
    'Slurm has reserved no ports for this step. Its tasks take %d to %d on '
    'each node, by SLURM_JOB_ID=%d and SLURM_STEP_ID=%d. With MpiParams=ports= '
    'in slurm.conf, srun --resv-ports=%d reserves some.',
    *(ports[0], ports[-1], job, step, num_needed),
  )
  return ports


def _tasks(jobs: Mapping[str, int]) -> list[tuple[str, int]]:
  return [(job, i) for job, num_tasks in jobs.items() for i in range(num_tasks)]


def _process(env: Mapping[str, str], num_tasks: int) -> int:
  process = validation.index(_value(env, 'SLURM_PROCID'), 'SLURM_PROCID')
  if process >= num_tasks:
    raise ValueError(
      f'{_quote(env, "SLURM_PROCID")} is not one of the {num_tasks} processes '
      f'of {_quote(env, "SLURM_STEP_TASKS_PER_NODE")}. '
      'Start this program by srun, which sets both.'
    )
  return process


def _check_distribution(env: Mapping[str, str], counts: list[int]) -> None:
  """Raises ValueError if Slurm assigned processes to nodes cyclically.

  Ports are computed for blocks of processes.
  """
  nodes = [node for node, n in enumerate(counts) for _ in range(n)]
  process, node = env.get('SLURM_PROCID', ''), env.get('SLURM_NODEID', '')
  if not (process.isdigit() and int(process) < len(nodes) and node.isdigit()):
    return
  if nodes[int(process)] != int(node):
    raise ValueError(
      f'SLURM_NODEID={node} for SLURM_PROCID={process}, where tasks that are '
      f'assigned to nodes in blocks would have {nodes[int(process)]}. '
      'Start the step with srun --distribution=block.'
    )


def _expand(part: str, where: str) -> Iterator[str]:
  tokens = re.findall(r'\[([^\]]*)\]|([^\[\]]+)', part)
  choices = [_range(r, where) if r else [literal] for r, literal in tokens]
  if math.prod(map(len, choices)) > _MAX_HOSTS:
    raise ValueError(
      f'{where}: {part!r} is more than {_MAX_HOSTS} hosts. '
      'Write a smaller range.'
    )
  return map(''.join, itertools.product(*choices))


def _range(text: str, where: str) -> list[str]:
  numbers: list[str] = []
  for part in text.split(','):
    low, _, high = part.partition('-')
    size = int(high or low) - int(low) + 1
    if not 0 < size <= _MAX_HOSTS:
      raise ValueError(
        f'{where}: [{part}] is {max(size, 0)} hosts. '
        f'Write a range that rises, of at most {_MAX_HOSTS} hosts.'
      )
    numbers += [f'{int(low) + i:0{len(low)}d}' for i in range(size)]
  return numbers


def _value(env: Mapping[str, str], name: str) -> str:
  value = env.get(name, '').strip()
  if not value:
    raise ValueError(f'{name} is not set or empty. Start this program by srun.')
  return value


def _quote(env: Mapping[str, str], name: str) -> str:
  return f'{name}={env.get(name, "")!r}'
