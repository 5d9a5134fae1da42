"""A Slurm cluster on this machine: its daemons, on hosts of a network.

Host 0 of the network runs slurmctld, and is where jobs are submitted; each
other host is a node with a slurmd. All see a mount namespace of their own, with
an /etc/hosts that has the nodes' names. What slurmd starts outlives it: a
process apart kills all that is in that namespace once the test's process has
ended, however it has ended.
"""

from collections.abc import Sequence
import contextlib
import os
import pathlib
import shutil
import socket
import stat
import subprocess
import sys

from tests.launch.engines import reap_namespace
from tests.support import waiting
from tfps.testing.chaos import network as network_lib

_COMMANDS = ('slurmctld', 'slurmd', 'munged', 'sbatch', 'srun', 'scontrol')
_CPUS = 8  # of each node, as Slurm is told
_GPUS = 2  # of the first node, as Slurm is told
_COMMAND_SECS = 60
_REAPER = str(pathlib.Path(reap_namespace.__file__))

# A job that is queued again waits for as long as a credential may be used.
_CONF = """\
ClusterName=tfps
SlurmctldHost={host}({address})
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
{mpi_params}
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=1,batch_sched_delay=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
ReturnToService=2
SlurmdParameters=config_overrides
SlurmctldPidFile={folder}/ctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmdSpoolDir={folder}/spool-%n
StateSaveLocation={folder}/state
SlurmctldLogFile={folder}/ctld.log
SlurmdLogFile={folder}/%n.log
KillWait=20
InactiveLimit=0
GresTypes=gpu
{nodes}
PartitionName=low Nodes=ALL Default=YES State=UP PriorityTier=1 \
GraceTime=30 PreemptMode=REQUEUE
PartitionName=high Nodes=ALL State=UP PriorityTier=10 PreemptMode=OFF
PartitionName=gpu Nodes={gpu_node} State=UP GraceTime=30
PartitionName=cpu Nodes={cpu_nodes} State=UP GraceTime=30
"""


def missing() -> str:
  """Returns why there can be no such cluster here; empty if there can."""
  absent = [name for name in _COMMANDS if not shutil.which(name)]
  if absent:
    return f'{", ".join(absent)}: apt-get install slurm-wlm munge.'
  return network_lib.problem()


class SlurmCluster:
  """Runs Slurm's daemons; a context manager.

  Args:
    folder: for all that the daemons keep.
    num_nodes: number of nodes, which are named n1, n2, ...
    reserves_ports: whether slurm.conf has ports for srun --resv-ports.
  """

  def __init__(
    self,
    folder: pathlib.Path,
    *,
    num_nodes: int = 3,
    reserves_ports: bool = True,
  ) -> None:
    self.folder = folder
    self.nodes = [f'n{i + 1}' for i in range(num_nodes)]
    self._network = network_lib.Network(num_nodes + 1)
    self._reserves_ports = reserves_ports
    self._holder = 0
    self._stack = contextlib.ExitStack()

  def __enter__(self) -> 'SlurmCluster':
    with contextlib.ExitStack() as stack:
      stack.enter_context(self._network)
      self._write_files()
      stack.enter_context(self._namespace())
      self._start_daemons()
      self._stack = stack.pop_all()
    return self

  def __exit__(self, *exc_info: object) -> None:
    self._stack.close()

  def run(
    self,
    *command: str,
    cwd: pathlib.Path | None = None,
    timeout_secs: float = _COMMAND_SECS,
    **env: str,
  ) -> subprocess.CompletedProcess[str]:
    """Runs a command where jobs are submitted, to its end."""
    return subprocess.run(
      self._within(0, command, cwd or self.folder),
      env={**os.environ, **self._env(), **env},
      stdin=subprocess.DEVNULL,
      capture_output=True,
      text=True,
      timeout=timeout_secs,
    )

  def job(self, job_id: str) -> dict[str, str]:
    """Returns what `scontrol show job` says of a job, by its words."""
    told = self.run('scontrol', '--oneliner', 'show', 'job', job_id)
    assert told.returncode == 0, told.stderr
    words = told.stdout.splitlines()[0].split()
    return dict(word.split('=', 1) for word in words if '=' in word)

  @property
  def namespace(self) -> str:
    """The mount namespace of all processes of the cluster."""
    return reap_namespace.namespace(self._holder)

  def job_processes(self) -> list[int]:
    """Returns the ids of all processes of jobs, and of Slurm's for them."""
    members = reap_namespace.members(self.namespace)
    return [pid for pid in members if pid not in self._own]

  def unreachable_conf(self) -> pathlib.Path:
    """Returns a configuration with a controller that is not there."""
    path = self.folder / 'unreachable.conf'
    conf = (self.folder / 'slurm.conf').read_text()
    path.write_text(f'{conf}SlurmctldPort=1\n')
    return path

  def _write_files(self) -> None:
    host = socket.gethostname()
    addresses = [self._network.address(i) for i in range(len(self.nodes) + 1)]
    names = ['localhost', host, *self.nodes]
    (self.folder / 'hosts').write_text(
      ''.join(
        f'{address} {name}\n'
        for address, name in zip(['127.0.0.1', *addresses], names, strict=True)
      )
    )
    (self.folder / 'state').mkdir()
    (self.folder / 'munge.key').write_bytes(os.urandom(1024))
    (self.folder / 'munge.key').chmod(0o400)
    for gpu in (self.folder / f'gpu{i}' for i in range(_GPUS)):
      os.mknod(gpu, stat.S_IFCHR | 0o666, os.makedev(1, 3))  # as /dev/null
    (self.folder / 'gres.conf').write_text(
      f'NodeName={self.nodes[0]} Name=gpu '
      f'File={self.folder}/gpu[0-{_GPUS - 1}]\n'
    )
    (self.folder / 'slurm.conf').write_text(
      _CONF.format(
        folder=self.folder,
        host=host,
        address=addresses[0],
        gpu_node=self.nodes[0],
        cpu_nodes=','.join(self.nodes[1:]),
        mpi_params='MpiParams=ports=12000-12999' * self._reserves_ports,
        nodes='\n'.join(
          f'NodeName={name} NodeHostname={host} NodeAddr={address} '
          f'CPUs={_CPUS} State=UNKNOWN'
          + f' Gres=gpu:{_GPUS}'
          * (name == self.nodes[0])
          for name, address in zip(self.nodes, addresses[1:], strict=True)
        ),
      )
    )

  @contextlib.contextmanager
  def _namespace(self):
    """Holds a mount namespace, whose processes end with this context."""
    bind = f'mount --bind {self.folder}/hosts /etc/hosts && echo'
    holder = self._network.popen(
      0,
      ['unshare', '--mount', 'sh', '-c', f'{bind} && exec sleep infinity'],
      stdout=subprocess.PIPE,
    )
    assert holder.stdout
    assert holder.stdout.readline() == b'\n'
    self._holder = holder.pid
    with subprocess.Popen(
      [sys.executable, '-I', '-S', _REAPER, str(holder.pid)],
      stdin=subprocess.PIPE,
      start_new_session=True,
    ) as reaper:
      try:
        yield
      finally:
        reaper.communicate()

  def _start_daemons(self) -> None:
    socket_path = self.folder / 'munge.socket'
    self._start(
      0,
      *('munged', '--foreground', '--force', f'--socket={socket_path}'),
      f'--key-file={self.folder}/munge.key',
      *(
        f'--{name}-file={self.folder}/munge.{name}'
        for name in ('log', 'pid', 'seed')
      ),
    )
    waiting.until(socket_path.exists)
    self._start(0, 'slurmctld', '-D')
    for i, node in enumerate(self.nodes):
      self._start(i + 1, 'slurmd', '-D', '-N', node)
    waiting.until(self._is_ready)
    self._own = set(reap_namespace.members(self.namespace))

  def _start(self, host: int, *command: str) -> None:
    with (self.folder / 'daemons.log').open('ab') as log:
      self._network.popen(
        host,
        self._in_namespace(command, self.folder),
        self._env(),
        stdout=log,
        stderr=log,
      )

  def _is_ready(self) -> bool:
    states = self.run(
      'sinfo', '--noheader', '--Node', '--partition=low', '--format=%T'
    )
    return states.stdout.split() == ['idle'] * len(self.nodes)

  def _within(
    self, host: int, command: Sequence[str], cwd: pathlib.Path
  ) -> list[str]:
    return self._network.within(host, self._in_namespace(command, cwd))

  def _in_namespace(
    self, command: Sequence[str], cwd: pathlib.Path
  ) -> list[str]:
    mounts = f'--mount=/proc/{self._holder}/ns/mnt'
    return ['nsenter', mounts, f'--wd={cwd}', '--', *command]

  def _env(self) -> dict[str, str]:
    return {'SLURM_CONF': str(self.folder / 'slurm.conf')}
