"""The pods of rendered manifests run as processes, each on a host of its own.

They have what pods would have and no more: the environment, host names, the one
port, a root that is read-only, `/tmp` for themselves, secrets, and no
capabilities. In place of a kubelet, the test runs the commands of the probes.
"""

import contextlib
import dataclasses
import os
import pathlib
import shutil
import subprocess
import sys

import pytest
import yaml

from tests.support import enclosures
from tests.support import on_hosts
from tests.support import pods as pods_lib
from tests.support import waiting
from tfps.launch import job as job_lib
from tfps.launch import manifest_settings
from tfps.launch import manifests
from tfps.testing.chaos import network as network_lib

pytestmark = on_hosts.needs_network

_ROOT = pathlib.Path(__file__).parents[3]
_IMAGE = '/srv'  # where the pods find this repository
_PROGRAM = f'{_IMAGE}/tests/programs/served.py'
_SECRET = '/media'  # where pods find their certificates
# This interpreter may be in a folder of /tmp, which is to be empty.
_CONTAINER = f"""
mount --make-rprivate /
mount --bind {sys.prefix} /mnt
mount --bind "$0" /etc/hosts
mount --bind "$1" {_SECRET}
shift
mount --bind {_ROOT} {_IMAGE}
mount -o remount,bind,ro {_IMAGE}
mount -t tmpfs tmpfs /tmp
mkdir -p {sys.prefix}
mount --bind /mnt {sys.prefix}
mount -o remount,bind,ro /
cd {_IMAGE}
exec setpriv --no-new-privs --bounding-set=-all --inh-caps=-all "$@"
"""


@dataclasses.dataclass
class _Kubelet:
  """Runs pods, and commands within them.

  Attributes:
    network: the pods' hosts.
    folder: for what they write, and with the certificates, if any.
    pods: the pods.
    places: for each pod, by its name, the index of its host.
  """

  network: network_lib.Network
  folder: pathlib.Path
  pods: list[pods_lib.Pod]
  places: dict[str, int]

  def start(self, pod) -> subprocess.Popen:
    """Starts a pod's command."""
    with self.output(pod).open('wb') as output:
      return self.network.popen(
        *self._within(pod, pod.command()),
        stdout=output,
        stderr=output,
      )

  def output(self, pod) -> pathlib.Path:
    """The file with what a pod has said."""
    return self.folder / f'{pod.host}.log'

  def probe(self, pod, kind) -> subprocess.CompletedProcess:
    """Runs the command of a pod's probe."""
    probe = pod.container[f'{kind}Probe']
    return self.run(pod, probe['exec']['command'], probe['timeoutSeconds'])

  def run(self, pod, command, timeout_secs=60) -> subprocess.CompletedProcess:
    """Runs a command in a pod."""
    host, words = self._within(pod, command)
    return subprocess.run(
      self.network.within(host, words),
      capture_output=True,
      text=True,
      timeout=timeout_secs,
    )

  def _within(self, pod, command):
    image = {
      'PATH': f'{pathlib.Path(sys.executable).parent}:{os.environ["PATH"]}',
      'PYTHONPATH': _IMAGE,
    }
    env = [f'{k}={v}' for k, v in (image | pod.env).items()]
    return self.places[pod.host], [
      *('unshare', '--mount', 'sh', '-ec', _CONTAINER),
      *(str(self.folder / 'hosts'), str(self._secrets(pod))),
      *('env', '-i', *env, *command),
    ]

  def _secrets(self, pod) -> pathlib.Path:
    """The folder with the files that a pod has of secrets."""
    made = self.folder / f'{pod.host}.secrets'
    made.mkdir(exist_ok=True)
    for volume in pod.spec['volumes']:
      for item in volume.get('secret', {}).get('items', ()):
        file = made / item['path']
        if not file.exists():
          shutil.copyfile(self.folder / 'certs' / item['key'], file)
          file.chmod(volume['secret']['defaultMode'])
    return made

  def write_hosts(self) -> None:
    """Writes what stands in for the name service."""
    lines = [
      f'{self.network.address(place)} {name}\n'
      for name, place in self.places.items()
    ]
    text = '127.0.0.1 localhost\n' + ''.join(lines)
    (self.folder / 'hosts').write_text(text)


def _secured(job, folder):
  """A job whose pods have certificates, and may make no namespaces."""
  enclosures.make(folder / 'certs', *job.tasks())
  return dataclasses.replace(
    job,
    certificates=pathlib.Path(_SECRET),
    env={'TFPS_ENCLOSURE': 'preload'},
  )


@contextlib.contextmanager
def _kubelet(kind, folder, job):
  secrets = {'certs': _SECRET} if job.certificates else {}
  settings = manifest_settings.Settings('train', kind, secrets=secrets)
  text = manifests.render(job, settings)
  pods = pods_lib.pods(list(yaml.safe_load_all(text)))
  with network_lib.Network(len(pods) + 1) as network:  # with one to spare
    places = {pod.host: i for i, pod in enumerate(pods)}
    kubelet = _Kubelet(network, folder, pods, places)
    kubelet.write_hosts()
    yield kubelet


@pytest.mark.exhaustive
@pytest.mark.parametrize(
  'is_secured',
  [
    pytest.param(False, id='plain'),
    pytest.param(True, id='secured', marks=enclosures.preloads()),
  ],
)
@pytest.mark.parametrize('kind', ['jobset', 'statefulset', 'tfjob'])
def test_pods_meet_and_train_and_probes_tell_their_state(
  kind, is_secured, tmp_path
):
  job = job_lib.Job((_PROGRAM,))
  job = _secured(job, tmp_path) if is_secured else job
  with _kubelet(kind, tmp_path, job) as kubelet:
    chief, *servers = sorted(kubelet.pods, key=lambda pod: pod.job != 'chief')
    assert [pod.job for pod in servers] == ['ps', 'worker']
    probe = 'liveness' if kind == 'tfjob' else 'readiness'
    running = {pod.host: kubelet.start(pod) for pod in servers}
    for pod in servers:
      waiting.until(
        lambda pod=pod: 'is alive' in kubelet.probe(pod, probe).stdout,
        say=lambda pod=pod: (
          kubelet.probe(pod, probe),
          kubelet.output(pod).read_text(),
        ),
      )
    assert 'does not run' in kubelet.probe(chief, 'liveness').stdout
    plain = ['tfps', 'health', f'--address=127.0.0.1:{manifests.PORT}']
    assert bool(kubelet.run(servers[0], plain).returncode) == is_secured
    running[chief.host] = kubelet.start(chief)
    for pod in kubelet.pods:
      status = running[pod.host].wait(120)
      assert status == 0, kubelet.output(pod).read_text()
    assert 'count 10' in kubelet.output(chief).read_text()


@enclosures.preloads()
def test_a_ps_that_is_replaced_on_another_host_is_found_by_tls(tmp_path):
  steps = 400
  job = _secured(
    job_lib.Job(
      (f'{_IMAGE}/tests/programs/secured.py', str(steps), '/tmp/snapshots'),
      num_chiefs=0,
    ),
    tmp_path,
  )
  with _kubelet('jobset', tmp_path, job) as kubelet:
    pods = {pod.job: pod for pod in kubelet.pods}
    running = {name: kubelet.start(pod) for name, pod in pods.items()}
    said = kubelet.output(pods['worker'])
    waiting.until(lambda: 'at 40\n' in said.read_text(), say=said.read_text)
    assert 'is alive' in kubelet.probe(pods['ps'], 'readiness').stdout
    running['ps'].kill()
    running['ps'].wait(60)
    kubelet.places[pods['ps'].host] = len(kubelet.pods)
    kubelet.write_hosts()
    kubelet.start(pods['ps'])
    assert running['worker'].wait(120) == 0, said.read_text()
    assert f'values {steps} {steps} {steps}\n' in said.read_text()
    assert 'is at 10.' in said.read_text()


def test_a_pod_can_write_to_tmp_alone(tmp_path):
  lines = (
    'touch "$HOME"/a && echo written',
    f'touch {_IMAGE}/a 2>&1 || true',
    'mount -t tmpfs tmpfs /tmp 2>&1 || true',
  )
  program = f'import os; os.execvp("sh", ["sh", "-c", {"; ".join(lines)!r}])'
  with _kubelet('jobset', tmp_path, job_lib.Job(('-c', program))) as kubelet:
    pod = kubelet.pods[0]
    assert kubelet.start(pod).wait(60) == 0
    said = kubelet.output(pod).read_text()
  assert said.startswith('written\n')
  assert 'Read-only file system' in said
  assert 'permission denied' in said
  assert not (_ROOT / 'a').exists()
