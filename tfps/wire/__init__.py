"""The wire between ps and workers: what travels, packed how, encoded how."""
