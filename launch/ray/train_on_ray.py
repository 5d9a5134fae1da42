"""Runs train.py as all tasks of a cluster: python train_on_ray.py."""

import sys

import tfps.launch.ray

if __name__ == '__main__':
  tfps.launch.ray.run(
    ('train.py', *sys.argv[1:]), num_workers=2, num_ps=1, log_dir='logs'
  )
