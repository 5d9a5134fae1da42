"""A fixed share of the files for each worker."""

from collections.abc import Iterable
import os

import tensorflow as tf

from tfps.input import splits


def shard(
  files: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
  context: tf.distribute.InputContext,
) -> list[str]:
  """One worker's share of the files: each file is one worker's.

  Workers read nothing that they then leave out, as `Dataset.shard` has them do.
  Nobody takes over the share of a worker that is lost, and none gets another's
  when it is done with its own; `SplitQueue` does that.

  Args:
    files: a path or a pattern, or several; as for `Files`.
    context: which of the workers it is.

  Raises:
    ValueError: there are fewer files than workers, or none.
  """
  paths = splits.found(files)
  num_workers = context.num_input_pipelines
  if len(paths) < num_workers:
    raise ValueError(
      f'files: {len(paths)} cannot be shared out to {num_workers} workers, of '
      'whom some would have none. Write the data to more files, or use a '
      'tfps.input.SplitQueue of tfps.input.Ranges, which takes any number.'
    )
  return paths[context.input_pipeline_id :: num_workers]
