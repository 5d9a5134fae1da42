"""User options for transfers between ps and workers."""

import dataclasses

from tfps.wire import codecs

_MAX_PREFETCH = 2


@dataclasses.dataclass(frozen=True)
class Wire:
  """Options for the transfer of values between ps and workers.

  ```
  strategy = tfps.ParameterServerStrategy(
    cluster, wire=tfps.Wire(push=tfps.codecs.Int8(), prefetch=1)
  )
  ```

  Attributes:
    fuse: whether tensors to or from the same ps travel as one tensor.
    pull: the codec of parameters that workers pull; None sends them unchanged.
    push: the codec of gradients that workers push; None sends them unchanged.
    prefetch: how many steps ahead parameters are read, within the steps that
      are unrolled: up to 32 of an execution, or as many as `unroll` says. At
      0 a step waits for the update of the one before. At 1 the parameters of
      the next step travel while this one computes, and at 2 also while its
      gradients travel; parameters then miss so many of the worker's updates.
    unroll: how many steps the body of the loop over an execution's steps has.
      More take longer to prepare, but often execute faster. By default it is 1
      without prefetching, and `fit` and `train` unroll more once they have
      taken so long that this pays.

  Raises:
    ValueError: an option is invalid, or does not fit the others.
  """

  fuse: bool = True
  pull: codecs.Codec | None = None
  push: codecs.Codec | None = None
  prefetch: int = 0
  unroll: int | None = None

  def __post_init__(self) -> None:
    for name in ('pull', 'push'):
      codec = getattr(self, name)
      if not isinstance(codec, codecs.Codec | None):
        raise ValueError(
          f'Wire: {name} is {codec!r}, which is no codec. Give one of '
          'tfps.codecs, or None.'
        )
    if self.pull is not None and not self.pull.for_pulls:
      raise ValueError(
        f'Wire: pull is {self.pull}, which cannot be: {self.pull.why_not}. '
        'Use it as push.'
      )
    if self.prefetch not in range(_MAX_PREFETCH + 1):
      raise ValueError(
        f'Wire: prefetch is {self.prefetch!r}. Give 0, 1 or {_MAX_PREFETCH}.'
      )
    if self.unroll is not None and (
      not isinstance(self.unroll, int) or self.unroll < 1
    ):
      raise ValueError(
        f'Wire: unroll is {self.unroll!r}. Give a number of steps, 1 or more.'
      )
    if not self.fuse and (self.pull or self.push or self.prefetch):
      raise ValueError(
        f'Wire: fuse is {self.fuse!r}, but codecs and prefetching work on '
        'fused transfers. Leave fuse at True.'
      )
