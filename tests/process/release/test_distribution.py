"""What is published: built, and used in an environment with nothing else."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile

import pytest

pytest.importorskip('build', reason='needs tfps[dev]')

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(1800)]

_ROOT = pathlib.Path(__file__).parents[3]
# None is in a clean checkout.
_NOT_SOURCE = shutil.ignore_patterns(
  *('.*', 'build', 'dist', 'runs', '*.egg-info', '__pycache__')
)


def _run(*words, cwd, timeout_secs, **env):
  """Runs a command that knows nothing of this process' packages."""
  own = {k: v for k, v in os.environ.items() if k != 'PYTHONPATH'}
  done = subprocess.run(
    [*map(str, words)],
    cwd=cwd,
    env=own | env,
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
    timeout=timeout_secs,
  )
  assert done.returncode == 0, done.stdout[-5000:]
  return done.stdout


@pytest.fixture(scope='module')
def dist(tmp_path_factory):
  """The folder with the source distribution and the wheel made of it."""
  folder = tmp_path_factory.mktemp('release')
  source = folder / 'source'
  shutil.copytree(_ROOT, source, ignore=_NOT_SOURCE)
  out = folder / 'dist'
  command = (sys.executable, '-m', 'build', '--outdir', out, source)
  _run(*command, cwd=folder, timeout_secs=600)
  return out


@pytest.fixture(scope='module')
def wheel(dist):
  """The wheel."""
  (found,) = dist.glob('*.whl')
  return found


@pytest.fixture(scope='module')
def scripts(wheel, tmp_path_factory):
  """The folder of commands of an environment with the wheel alone."""
  folder = tmp_path_factory.mktemp('environment')
  venv.create(folder, with_pip=True)
  python = folder / 'bin' / 'python'
  before = _run(python, '-m', 'pip', 'list', cwd=folder, timeout_secs=60)
  assert 'tensorflow' not in before
  command = (python, '-m', 'pip', 'install', '--quiet', wheel)
  _run(*command, cwd=folder, timeout_secs=1200)
  return python.parent


def _version():
  text = (_ROOT / 'pyproject.toml').read_text()
  return re.search(r'^version = "(.*)"$', text, re.M)[1]


def _readme():
  text = (_ROOT / 'README.md').read_text()
  return re.search(r'```python\n# train\.py\n(.*?)```', text, re.DOTALL)[1]


def test_the_wheel_has_the_package_alone(wheel):
  assert wheel.name == f'tfps-{_version()}-py3-none-any.whl'
  names = zipfile.ZipFile(wheel).namelist()
  tops = {name.partition('/')[0] for name in names}
  assert tops == {'tfps', f'tfps-{_version()}.dist-info'}
  assert 'tfps/py.typed' in names
  package = _ROOT / 'tfps'
  wanted = {
    f'tfps/{path.relative_to(package)}'
    for path in package.rglob('*')
    if path.is_file() and path.suffix != '.pyc'
  }
  assert any('launch/templates' in name for name in wanted)
  assert wanted <= set(names)


def test_the_source_distribution_has_what_users_copy(dist):
  (path,) = dist.glob('*.tar.gz')
  with tarfile.open(path) as archive:
    names = {name.partition('/')[2] for name in archive.getnames()}
  for each in (
    'LICENSE',
    'CHANGELOG.md',
    'docs/launch.md',
    'examples/flights/train.py',
    'launch/kubernetes/Dockerfile',
    'launch/kubernetes/jobset/overlays/gpus/kustomization.yaml',
    'tests/conftest.py',
  ):
    assert each in names


def test_the_command_tells_its_version(scripts, tmp_path):
  said = _run(scripts / 'tfps', '--version', cwd=tmp_path, timeout_secs=60)
  assert said == f'tfps {_version()}\n'


def test_readmes_program_trains_alone(scripts, tmp_path):
  (tmp_path / 'train.py').write_text(_readme())
  command = (scripts / 'python', 'train.py')
  _check(_run(*command, cwd=tmp_path, timeout_secs=300))


def test_readmes_program_trains_on_a_local_cluster(scripts, tmp_path):
  (tmp_path / 'train.py').write_text(_readme())
  command = (scripts / 'tfps', 'launch', '--num_ps=2', 'train.py')
  said = _run(*command, cwd=tmp_path, timeout_secs=300)
  _check(said)
  assert re.search(r'\[chief:0\] ps:1\s+\d+', said)


def _check(said):
  losses = [float(loss) for loss in re.findall(r'loss: (\S+)', said)]
  assert losses[-1] < losses[0] / 2, said


@pytest.mark.parametrize('kind', ['jobset', 'statefulset', 'tfjob'])
def test_templates_are_in_the_wheel(scripts, tmp_path, kind):
  words = ('--engine=kubernetes', '--dry_run', '--image=train')
  said = _run(
    *(scripts / 'tfps', 'launch', *words, f'--kind={kind}', 'train.py'),
    cwd=tmp_path,
    timeout_secs=60,
  )
  folder = _ROOT / 'launch' / 'kubernetes' / kind
  assert said == (folder / 'base' / 'train.yaml').read_text()


def test_a_batch_script_is_rendered(scripts, tmp_path):
  (tmp_path / 'train.py').touch()
  words = ('launch', '--engine=slurm', '--dry_run', 'train.py')
  said = _run(scripts / 'tfps', *words, cwd=tmp_path, timeout_secs=60)
  assert said.startswith('#!/bin/bash\n')
  assert '\n#SBATCH --ntasks=3\n' in said


def test_the_suite_of_engines_passes_on_this_machine(scripts, wheel, tmp_path):
  """What follows leaves more in the environment than the wheel takes."""
  extras = f'{wheel}[examples,test]'
  command = (scripts / 'python', '-m', 'pip', 'install', '--quiet', extras)
  _run(*command, cwd=tmp_path, timeout_secs=600)
  for folder in ('examples', 'tests'):
    shutil.copytree(_ROOT / folder, tmp_path / folder, ignore=_NOT_SOURCE)
  shutil.copy(_ROOT / 'pyproject.toml', tmp_path)
  cases = ('tests/launch/test_conformance.py', '-k', 'local')
  said = _run(
    *(scripts / 'python', '-m', 'pytest', '--exhaustive', *cases),
    cwd=tmp_path,
    timeout_secs=900,
  )
  assert re.search(r'^6 passed, \d+ deselected', said, re.M), said
