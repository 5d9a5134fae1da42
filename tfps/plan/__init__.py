"""Predicts the training speed of a cluster that does not exist yet.

```
from tfps import plan

model = plan.Model.of_bytes(100e6, compute_secs=0.1)
job = plan.Job(model, num_workers=100, num_ps=10, links=plan.Links(10_000))
print(plan.predict(job).steps_per_sec)
```

It simulates some steps of all workers: transfers with the chunks and codecs of
the wire, between the tasks that placement chooses, over shared links.
`tfps plan`, or `python -m tfps.plan`, prints a table and advice.
"""

from tfps.plan.command import main
from tfps.plan.jobs import Costs
from tfps.plan.jobs import Job
from tfps.plan.jobs import Links
from tfps.plan.models import Model
from tfps.plan.models import Variable
from tfps.plan.predictions import predict
from tfps.plan.predictions import Prediction

__all__ = [
  'Costs',
  'Job',
  'Links',
  'Model',
  'Prediction',
  'Variable',
  'main',
  'predict',
]
