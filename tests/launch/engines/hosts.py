"""Tasks on hosts that are network namespaces, each with a real sshd."""

import contextlib
import pathlib
import shutil
import subprocess

from tests.launch import engine as engine_lib
from tests.support import waiting
from tfps.testing.chaos import network as network_lib

_SSHD = '/usr/sbin/sshd'
_SERVER = """\
HostKey {folder}/key
AuthorizedKeysFile {folder}/key.pub
PidFile none
UsePAM no
StrictModes no
PasswordAuthentication no
"""
_CLIENT = """\
IdentityFile {folder}/key
StrictHostKeyChecking no
UserKnownHostsFile /dev/null
LogLevel ERROR
"""


class Hosts(engine_lib.Engine):
  """`tfps launch --hosts=...` on host 0, which has ssh to hosts 1 and 2."""

  name = 'hosts'

  def missing(self):
    if not shutil.which(_SSHD) or not shutil.which('ssh'):
      return 'no sshd: apt-get install openssh-server'
    return network_lib.problem()

  @contextlib.contextmanager
  def up(self, folder):
    subprocess.run(
      ['ssh-keygen', '-q', '-t', 'ed25519', '-N', '', '-f', folder / 'key'],
      check=True,
      timeout=30,
    )
    self._config = folder / 'ssh_config'
    self._config.write_text(_CLIENT.format(folder=folder))
    pathlib.Path('/run/sshd').mkdir(exist_ok=True)
    (folder / 'sshd_config').write_text(_SERVER.format(folder=folder))
    with network_lib.Network(num_hosts=4) as self.network:
      for host in (1, 2):
        self.network.popen(
          host, [_SSHD, '-D', '-e', '-f', str(folder / 'sshd_config')]
        )
      for host in (1, 2):
        waiting.until(lambda host=host: self._answers(host), timeout_secs=30)
      yield

  def _answers(self, host):
    command = ['ssh', '-F', self._config, self.network.address(host), 'true']
    ran = self.network.popen(0, [*map(str, command)])
    return ran.wait(10) == 0

  def run(self, folder, request):
    logs = folder / 'logs'
    addresses = [self.network.address(i) for i in (1, 2)]
    hosts = f'--hosts={addresses[0]}:3,{addresses[1]}:2'
    if any(option.startswith('--host') for option in request.options):
      hosts = '--engine=hosts'
    ssh = f'--ssh=ssh -F {self._config}'
    command = request.command(hosts, ssh, f'--log_dir={logs}')
    return engine_lib.Launched(
      self.network.within(0, command), folder, logs, request.env
    )

  def mistakes(self):
    nowhere = self.network.address(3)
    return [
      engine_lib.Mistake(
        'too few slots',
        r'are 9 tasks, and the hosts have 5',
        sizes={'num_ps': 6},
      ),
      engine_lib.Mistake(
        'an unreachable host',
        rf'{nowhere}: .*(refused|timed out|[Nn]o route)',
        words=[f'--hosts={nowhere}:9'],
      ),
      engine_lib.Mistake(
        'no ssh',
        r"--ssh: .*No such file.*'no_ssh'",
        words=['--ssh=no_ssh'],
      ),
    ]
