"""The threads that all servers of one process share."""

# By which TensorFlow is told of their number, before it is first used.
VARIABLE = 'TF_NUM_INTEROP_THREADS'

ENOUGH = 128  # for most clusters in one process; they cost nothing idle
