"""The engines that the conformance suite runs."""

from tests.launch.engines import hosts
from tests.launch.engines import kubernetes
from tests.launch.engines import local
from tests.launch.engines import ray
from tests.launch.engines import slurm
from tests.launch.engines import spark

ALL = (
  local.Local,
  hosts.Hosts,
  slurm.Slurm,
  ray.Ray,
  spark.Spark,
  kubernetes.Kubernetes,
)
