"""The steady speed of other frameworks beside ours, on the same two models.

Each has two workers; those with parameter servers have two ps besides. All take
turns, on CPUs, with as many threads as they take by themselves.
"""

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import pathlib

from benchmarks import command
from benchmarks import dense
from benchmarks import embedding
from benchmarks import sides
from benchmarks import steady
from benchmarks import steady_task as task
from benchmarks import tables
from benchmarks.peers import envs
from benchmarks.peers import launches

ENVS = command.FOLDER / 'envs'
_ROOT = pathlib.Path(__file__).parents[2]
_OURS = {
  'ours, coordinator, 20 a call': task.COORDINATOR,
  'ours, between graphs, 20 a call': task.BETWEEN,
  'ours, all-reduce, 20 a call': task.ALL_REDUCE,
}
_KEYED = 'ours, coordinator, any keys, 20 a call'
_KEYED_MODELS = {
  'clicks': {_KEYED: 'keyed'},
  'features': {
    _KEYED: 'keyed_features',
    'ours, coordinator, any keys, each on one ps, 20 a call': (
      'unsharded_features'
    ),
    'ours, coordinator, any keys, in one table, 20 a call': (
      'features_of_one_table'
    ),
  },
}
_TITLES = {
  'mlp': dense.TITLES['mlp'],
  'clicks': embedding.TITLE,
  'features': '26 tables of 100,000 rows of 16, Adagrad, 128 examples a step '
  'of an id for each, by Zipf(1.2)',
}
_NOTES = (
  *dense.NOTES,
  'A step is of one worker, on a batch of its own: where workers make one '
  'update of their gradients, as with DDP, TorchRec and '
  'MultiWorkerMirroredStrategy, two steps are one update.',
)

_TORCH, _NUMPY = 'torch==2.13.0', 'numpy==2.4.6'


@dataclasses.dataclass(frozen=True)
class Peer:
  """Another framework.

  Attributes:
    program: the module of its tasks.
    launch: starts them.
    environment: what they need.
    models: that they train.
  """

  program: str
  launch: launches.Launch
  environment: envs.Environment
  models: Sequence[str] = ('mlp', *_KEYED_MODELS)

  def side(self, python: str, model: str) -> sides.Side:
    """Its tasks.

    Args:
      python: the interpreter of its environment.
      model: what to train.
    """

    def programs(folder: str) -> dict[str, sides.Program]:
      words = [python, '-m', f'benchmarks.peers.{self.program}', model, folder]
      return {
        name: sides.Program(
          [*words, *arguments], {'PYTHONPATH': str(_ROOT), **env}
        )
        for name, (arguments, env) in self.launch().items()
      }

    return sides.ProgramsSide(programs, launches.WORKERS)


PEERS: Mapping[str, Peer] = {
  'PyTorch 2.13, DDP on gloo': Peer(
    'ddp',
    launches.torchrun,
    envs.Environment('torch', 'torch', [[_TORCH, _NUMPY]]),
  ),
  'PyTorch 2.13, parameter server on RPC': Peer(
    'rpc',
    launches.torch_rpc,
    envs.Environment('torch', 'torch', [[_TORCH, _NUMPY]]),
  ),
  'TorchRec 1.8': Peer(
    'torchrec_parallel',
    launches.torchrun,
    envs.Environment(
      'torchrec',
      'torchrec',
      [
        [
          *(_TORCH, _NUMPY, 'fbgemm-gpu-cpu==1.8.0', 'tensordict==0.15.3'),
          *('torchmetrics==1.0.3', 'pyre-extensions==0.0.32', 'tqdm'),
        ],
        # It asks for the fbgemm-gpu that takes CUDA, which is another name.
        ['--no-deps', 'torchrec==1.8.0'],
      ],
    ),
    models=tuple(_KEYED_MODELS),
  ),
  'Paddle 2.6, parameter server': Peer(
    'paddle_ps',
    launches.paddle,
    envs.Environment(
      'paddle',
      'paddle.distributed.fleet',
      [['paddlepaddle==2.6.2', 'numpy==1.26.4', 'protobuf==4.25.8']],
    ),
  ),
  'TensorFlow Recommenders Addons 0.8, any keys, session': Peer(
    'tfra',
    launches.parameter_servers,
    envs.Environment(
      'tfra',
      'tensorflow_recommenders_addons',
      [
        ['tensorflow==2.16.2', 'tf_keras==2.16.0'],
        ['--no-deps', 'tensorflow-recommenders-addons==0.8.1'],
        ['typeguard', 'packaging'],
      ],
    ),
    models=tuple(_KEYED_MODELS),
  ),
  'MultiWorkerMirroredStrategy, 20 a call': Peer(
    'mwms',
    launches.multi_worker,
    envs.Environment('tf_keras', 'tf_keras'),
    models=('mlp', 'clicks'),
  ),
}


def compare(*, quick: bool) -> Iterator[tables.Table]:
  """A table for each model."""
  pythons, left_out = interpreters(install=not quick)
  for model in _TITLES:
    yield _table_of(model, pythons, left_out, quick=quick)


def interpreters(*, install: bool) -> tuple[dict[str, str], list[str]]:
  """The interpreters of peers by name, and notes on those that have none.

  Args:
    install: whether to install what is not there.
  """
  pythons, left_out = {}, []
  for name, peer in PEERS.items():
    try:
      pythons[name] = peer.environment.python(ENVS, install=install)
    except envs.MissingError as error:
      left_out.append(f'{name} is left out: {error}.')
  return pythons, left_out


def _table_of(
  model: str,
  pythons: Mapping[str, str],
  left_out: Sequence[str],
  *,
  quick: bool,
) -> tables.Table:
  by_name = {name: steady.side(how, model) for name, how in _OURS.items()}
  for name, keyed in _KEYED_MODELS.get(model, {}).items():
    by_name[name] = steady.side(task.COORDINATOR, keyed)
  notes = [*_NOTES, *left_out]
  for name, python in pythons.items():
    if model in PEERS[name].models:
      by_name[name] = PEERS[name].side(python, model)
    elif model == 'mlp':
      notes.append(f'{name} is for tables of embeddings.')
    else:
      notes.append(f'{name} is left out: each step is of whole tables.')
  turns = steady.in_turns(by_name, quick=quick)
  return steady.table(
    f'peers-{model}',
    f'{_TITLES[model]}, 2 workers on one machine',
    turns,
    base=(next(iter(_OURS)), 'ours with a coordinator'),
    notes=notes,
  )
