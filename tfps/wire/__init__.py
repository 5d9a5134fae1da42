"""What travels between workers and ps: packed how, encoded how."""
