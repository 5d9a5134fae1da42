"""Mutual TLS between the tasks of a job: certificates, enclosures, proxies."""
