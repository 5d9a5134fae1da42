"""The engines that the conformance suite runs."""

from tests.launch.engines import hosts
from tests.launch.engines import local

ALL = (local.Local, hosts.Hosts)
