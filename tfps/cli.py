"""Command `tfps`, whose subcommands are modules that `-m` runs, too."""

import argparse
from collections.abc import Sequence
import importlib
from importlib import metadata
import sys

_COMMANDS = {
  'launch': 'start a program as all the tasks of a cluster',
  'doctor': 'check versions, devices, the cluster and its reachability',
  'health': "ask this task's own server, for probes",
  'certs': "make certificates for a job's tasks",
  'enclose': 'run a program that only mutual TLS reaches',
  'dump': 'say what the tasks of a running job do, with their stacks',
  'top': 'show a live table of the tasks of a running job',
  'trace': 'record what the tasks of a running job execute',
  'plan': 'predict how fast a cluster trains, and what limits it',
}
_MODULES = {
  'launch': 'tfps.launch.command',
  'doctor': 'tfps.doctor',
  'health': 'tfps.server.health_command',
  'certs': 'tfps.security.certs_command',
  'enclose': 'tfps.security.enclose_command',
  'dump': 'tfps.server.dump_command',
  'top': 'tfps.server.top_command',
  'trace': 'tfps.server.trace_command',
  'plan': 'tfps.plan.command',
}


def main(argv: Sequence[str] | None = None) -> int:
  """Runs `tfps COMMAND ...`.

  Args:
    argv: the command and its arguments; by default the command line's.

  Returns:
    The exit status of the command.

  Raises:
    SystemExit: for wrong options, --help and --version.
  """
  options = _parser().parse_args(argv)
  command = importlib.import_module(_MODULES[options.command])
  status: int = command.main(options.args)
  return status


def _parser() -> argparse.ArgumentParser:
  commands = '\n'.join(f'  {name}  {what}' for name, what in _COMMANDS.items())
  parser = argparse.ArgumentParser(
    prog='tfps',
    usage='%(prog)s [--help] [--version] command [args ...]',
    description='Parameter-server training for TensorFlow 2 and Keras 3.',
    epilog=f'commands:\n{commands}\n\ntfps COMMAND --help lists its options.',
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  version = f'tfps {metadata.version("tfps")}'
  parser.add_argument('--version', action='version', version=version)
  parser.add_argument('command', choices=_COMMANDS, help=argparse.SUPPRESS)
  parser.add_argument('args', nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
  return parser


if __name__ == '__main__':
  sys.exit(main())
