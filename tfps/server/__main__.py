"""Runs `python -m tfps.server`: a task that only serves."""

from absl import app
from absl import logging

from tfps.cluster import resolver
from tfps.server import server

if __name__ == '__main__':
  resolver.define_flags()
  logging.set_verbosity(logging.INFO)
  app.run(server.main)
