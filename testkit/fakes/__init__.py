"""Stand-ins for services that tests must not touch: a bucket, a TPU API."""
