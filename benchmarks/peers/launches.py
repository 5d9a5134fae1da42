"""How the tasks of peers are started and told of each other, on loopback."""

from collections.abc import Callable
from collections.abc import Mapping
import json

from benchmarks import workloads
from tfps._utils import ports

NUM_WORKERS, NUM_PS = workloads.NUM_WORKERS, workloads.NUM_PS
WORKERS = [f'worker:{i}' for i in range(NUM_WORKERS)]

_HOST = '127.0.0.1'

# By task, further arguments of its program and variables of its environment.
Launch = Callable[[], Mapping[str, tuple[list[str], dict[str, str]]]]


def _torch() -> dict[str, str]:
  """What all tasks of PyTorch are told."""
  return {
    'MASTER_ADDR': _HOST,
    'MASTER_PORT': str(ports.pick()),
    'GLOO_SOCKET_IFNAME': 'lo',
    'TP_SOCKET_IFNAME': 'lo',
    # As `torchrun` has it for several processes of a host.
    'OMP_NUM_THREADS': '1',
  }


def torchrun() -> dict[str, tuple[list[str], dict[str, str]]]:
  """Workers, with the variables of `torchrun`."""
  shared = {**_torch(), 'WORLD_SIZE': str(NUM_WORKERS)}
  return {
    task: ([], {**shared, 'RANK': str(i), 'LOCAL_RANK': str(i)})
    for i, task in enumerate(WORKERS)
  }


def torch_rpc() -> dict[str, tuple[list[str], dict[str, str]]]:
  """Ps and workers, which find each other by RPC."""
  shared = _torch()
  return {
    f'{job}:{i}': ([job, str(i)], shared)
    for job, number in (('ps', NUM_PS), ('worker', NUM_WORKERS))
    for i in range(number)
  }


def multi_worker() -> dict[str, tuple[list[str], dict[str, str]]]:
  """Workers, with TF_CONFIG."""
  return _with_tf_config({'worker': NUM_WORKERS})


def parameter_servers() -> dict[str, tuple[list[str], dict[str, str]]]:
  """Ps and workers, with TF_CONFIG."""
  return _with_tf_config({'ps': NUM_PS, 'worker': NUM_WORKERS})


def _with_tf_config(
  numbers: Mapping[str, int],
) -> dict[str, tuple[list[str], dict[str, str]]]:
  """So many tasks of each job, with TF_CONFIG."""
  cluster = {
    job: [f'{_HOST}:{ports.pick()}' for _ in range(number)]
    for job, number in numbers.items()
  }

  def config(job: str, index: int) -> str:
    task = {'type': job, 'index': index}
    return json.dumps({'cluster': cluster, 'task': task})

  return {
    f'{job}:{i}': ([], {'TF_CONFIG': config(job, i)})
    for job, addresses in cluster.items()
    for i in range(len(addresses))
  }


def paddle() -> dict[str, tuple[list[str], dict[str, str]]]:
  """Ps and workers, with the variables of Paddle's launcher."""
  ps_ports = [str(ports.pick()) for _ in range(NUM_PS)]
  worker_ports = [str(ports.pick()) for _ in WORKERS]
  shared = {
    'PADDLE_PSERVERS_IP_PORT_LIST': ','.join(f'{_HOST}:{p}' for p in ps_ports),
    'PADDLE_TRAINER_ENDPOINTS': ','.join(
      f'{_HOST}:{port}' for port in worker_ports
    ),
    'PADDLE_TRAINERS_NUM': str(NUM_WORKERS),
    'POD_IP': _HOST,
  }
  tasks: dict[str, tuple[list[str], dict[str, str]]] = {}
  for i, port in enumerate(ps_ports):
    role = {'TRAINING_ROLE': 'PSERVER', 'PADDLE_PORT': port}
    tasks[f'ps:{i}'] = [], {**shared, **role}
  for i, port in enumerate(worker_ports):
    role = {'TRAINING_ROLE': 'TRAINER', 'PADDLE_PORT': port}
    tasks[WORKERS[i]] = [], {**shared, **role, 'PADDLE_TRAINER_ID': str(i)}
  return tasks
