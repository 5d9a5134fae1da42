"""Trains on rows of a DataFrame: spark-submit train_on_spark.py DIRECTORY."""

import sys

from pyspark.sql import SparkSession

import tfps
import tfps.launch.spark


def train(rows: tfps.launch.spark.Rows, directory: str) -> float | None:
  """Runs in each task; what the chief returns comes back."""
  import tensorflow as tf

  cluster = tfps.resolve_cluster()
  if cluster.task.job in ('ps', 'worker'):
    return tfps.serve(cluster)
  recovery = tfps.Recovery(f'{directory}/snapshots')
  strategy = tfps.ParameterServerStrategy(cluster, recovery=recovery)
  with strategy.scope():
    slope = tf.Variable(0.0)
    queue = tfps.input.SplitQueue(rows.splits(), epochs=5)

  def step(batch: dict[str, tf.Tensor]) -> None:
    error = slope * batch['x'] - batch['y']
    slope.assign_sub(0.1 * tf.reduce_mean(error * batch['x']))

  with tfps.Coordinator(strategy) as coordinator:
    coordinator.train(
      step,
      lambda context: queue.dataset(context).batch(100).map(rows.parse),
    )
    return float(slope)


if __name__ == '__main__':
  spark = SparkSession.builder.getOrCreate()
  frame = spark.range(10_000).selectExpr(
    'id / 10000 AS x', '3 * id / 10000 AS y'
  )
  rows = tfps.launch.spark.write(frame, f'{sys.argv[1]}/rows', num_files=8)
  slope = tfps.launch.spark.run(spark, train, rows, sys.argv[1], num_workers=2)
  print('slope', slope)
