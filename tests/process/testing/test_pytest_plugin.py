import subprocess
import sys

import tensorflow as tf  # noqa: F401  # it can be imported once only

pytest_plugins = ['pytester']


def test_the_fixture_lends_one_cluster_to_a_module(pytester):
  pytester.makepyfile("""
    import pytest

    seen = []

    @pytest.mark.tfps_cluster(workers=2, ps=1)
    def test_shape(tfps_cluster):
      seen.append(tfps_cluster)
      assert tfps_cluster.cluster.num_workers == 2
      assert tfps_cluster.cluster.num_ps == 1

    @pytest.mark.tfps_cluster(workers=2, ps=1)
    def test_same_cluster(tfps_cluster):
      assert tfps_cluster is seen[0]

    def test_other_cluster(tfps_cluster):
      assert tfps_cluster is not seen[0]
      assert tfps_cluster.cluster.num_workers == 1

    @pytest.mark.tfps_cluster(processes=True)
    def test_kill(tfps_cluster):
      tfps_cluster.kill('ps', 0)
      assert tfps_cluster.wait('ps', 0, timeout_secs=10) == -9

    @pytest.mark.tfps_cluster(processes=True)
    def test_is_alive_again(tfps_cluster):
      from tfps import Task
      from tfps.server import health
      address = tfps_cluster.cluster.address(Task('ps', 0))
      assert health.probe(Task('ps', 0), address).state is health.State.ALIVE
  """)
  pytester.runpytest_inprocess('--strict-markers').assert_outcomes(passed=5)


def test_a_wrong_marker_is_told(pytester):
  pytester.makepyfile("""
    import pytest

    @pytest.mark.tfps_cluster(wrkers=2)
    def test_it(tfps_cluster):
      pass

    @pytest.mark.tfps_cluster(processes=True, devices_per_worker=2)
    def test_devices(tfps_cluster):
      pass
  """)
  result = pytester.runpytest_subprocess()
  result.assert_outcomes(errors=2)
  result.stdout.fnmatch_lines(
    [
      '*wrkers*It takes workers, ps, processes and *',
      '*devices_per_worker=2 is for *: leave out processes*',
    ]
  )


def test_the_plugin_does_not_import_tensorflow():
  program = 'import tfps.testing.pytest_plugin, sys; '
  program += 'sys.exit("tensorflow" in sys.modules)'
  assert subprocess.run([sys.executable, '-c', program]).returncode == 0
